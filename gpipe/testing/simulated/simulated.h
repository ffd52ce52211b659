// Simulated accelerators: a program that is linked with this library has four
// LibTorch devices, hpu:0 to hpu:3, without a GPU.
//
// They behave like CUDA devices, but expose more errors:
// - Operators return at once. Streams run them later, each on a thread of its
//   own.
// - Freed memory is overwritten and used again as soon as the rules allow.
// - All accesses are checked for an order (see order.h).
//
// Results have the same bits as those of the CPU's kernels on one thread.
//
// All functions are thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/testing/simulated/order.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {

// Sets the delays of all streams from now on.
void set_delays(const Delays& delays);

// Sets what makes hosts wait from now on.
void set_host_costs(const HostCosts& costs);

// Blocks until all devices are idle. Rethrows the exception of an operator.
void synchronize();

// Returns the races that HappensBefore has found since the last call.
std::vector<std::string> take_races();

// Returns all work that streams have received since the last call.
std::vector<Given> take_trace();

// Returns the counts since the process started.
Counts counts();
// Returns how often host threads have waited for a stream since then.
std::int64_t host_waits();

// Returns how many events have been made since the process started.
std::int64_t events_made();

// The bytes of the tensors on hpu:`device`: now, and the most since the last
// reset.
std::int64_t bytes_in_use(std::int64_t device);
std::int64_t peak_bytes(std::int64_t device);
// The most bytes that could not be used again, since the last reset: those of
// tensors, and freed ones that wait for a stream.
std::int64_t active_peak_bytes(std::int64_t device);
void reset_peak(std::int64_t device);
// Sets a limit for bytes_in_use(); nullopt removes it. An allocation above the
// limit throws c10::OutOfMemoryError.
void set_memory_limit(std::int64_t device, std::optional<std::int64_t> bytes);
// Returns the object that makes an operation of the devices fail.
instruments::FailNth& failing(Operation operation);
// Returns unused memory to the host. Blocks until all devices are idle.
void empty_cache();

// Sets the function that returns the micro-batch of the calling thread, for the
// reports of races.
void set_microbatch(std::optional<std::int64_t> (*microbatch)());

// Keeps the current stream of the tensor's device busy for `seconds`, like an
// operator that writes `tensor`.
void busy(const at::Tensor& tensor, double seconds);

// The duration of a copy between devices, or between a device and the host.
struct CopyCost {
  double latency = 0;           // seconds
  double seconds_per_byte = 0;  // 1 / bandwidth
};
// Sets the cost of all later copies. By default copies cost nothing.
// Thread-safe.
void set_copy_cost(const CopyCost& cost);

}  // namespace gpipe::simulated
