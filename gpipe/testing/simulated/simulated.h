// Accelerators without a GPU: link this in, and LibTorch has four devices
// hpu:0 to hpu:3.
//
// They behave as CUDA devices do, and worse: operators return at once and are
// done later, on streams that each have a thread; memory that is given back is
// overwritten and used again as soon as the rules allow; all accesses are
// checked for an order (see happens_before.h). Numbers are those of the CPU's
// kernels on one thread, to the bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/testing/simulated/copy.h"
#include "gpipe/testing/simulated/queue.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {

// Of all streams, from now on.
void set_delays(const Delays& delays);

// Waits until all devices are idle. Rethrows what an operator threw.
void synchronize();

// What HappensBefore has found since the last call.
std::vector<std::string> take_races();

// Work that streams have been given since the last call.
std::vector<Given> take_trace();

// How often a host thread has waited for a stream since the process began.
std::int64_t host_waits();

// Bytes of the tensors on hpu:`device`: now, and at most since the last reset.
std::int64_t bytes_in_use(std::int64_t device);
std::int64_t peak_bytes(std::int64_t device);
void reset_peak(std::int64_t device);
// What would bring bytes_in_use() above the limit throws
// c10::OutOfMemoryError.
void set_memory_limit(std::int64_t device, std::optional<std::int64_t> bytes);
// Has an operation of the devices fail.
testing::FailNth& failing(Operation operation);
// Returns free memory to the host. Waits for all devices.
void empty_cache();

// Tells which micro-batch a thread works on, for the reports of races.
void set_microbatch(std::optional<std::int64_t> (*microbatch)());

// Keeps the current stream of the tensor's device busy for a time, as an
// operator that reads and writes `tensor`.
void busy(const at::Tensor& tensor, double seconds);

}  // namespace gpipe::simulated
