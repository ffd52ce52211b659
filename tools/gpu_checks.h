// Checks of a pipeline on accelerators, in one process and in several. They
// compare a run with itself under harder conditions, so they need no stored
// results.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

namespace gpipe::tools {

enum class CheckOutcome { kPassed, kFailed, kNotPossible };

struct CheckResult {
  CheckOutcome outcome = CheckOutcome::kPassed;
  // Lines with the figures. The last line says why the outcome is what it is.
  std::string text;
};

// Highest memory of a device during a step, in bytes. `active` and `allocated`
// count from the bytes in use before the step. `active` also counts freed
// blocks that a stream may still use. `reserved` is what the allocator holds.
struct PeakBytes {
  c10::Device device;
  int64_t active = 0, allocated = 0, reserved = 0;
};

// Returns the peaks of a 1F1B step with `chunks` micro-batches of `rows` rows,
// without checkpointing, one entry per device. Layers are `width` wide; input
// and target have one column, so that their size does not matter.
// `devices`: one accelerator per partition; several may be the same.
std::vector<PeakBytes> peaks_of_step(const std::vector<c10::Device>& devices,
                                     int64_t chunks, int64_t rows,
                                     int64_t width);

// Compares the peaks of two steps that differ only in the number of
// micro-batches. Fails if on any device the active or allocated bytes of `many`
// are above 1.25 times those of `few`: 1F1B holds min(m, p - r) micro-batches
// on rank r, so the peaks must not grow with m.
CheckResult compare_peaks(const std::vector<PeakBytes>& few,
                          const std::vector<PeakBytes>& many);

// Measures peaks_of_step() with 8 and with 64 micro-batches and compares them.
// Not possible on CPUs, or if the allocator does not count active bytes.
CheckResult check_memory(const std::vector<c10::Device>& devices, int64_t rows,
                         int64_t width);

// Trains two layers of LSTM with dropout, checkpointing always and never. Fails
// if losses or gradients differ by more than rounding. The differences of two
// runs without checkpointing are printed beside them, since cuDNN may add up in
// another order each time.
// `devices`: two devices, one per partition.
CheckResult check_lstm(const std::vector<c10::Device>& devices);

// Repeats a step with layers that take a random time on the device, forward and
// backward, `rounds` times per schedule. Fails if a loss or a gradient has
// other bits than without delays.
// `devices`: one per partition.
CheckResult check_order(const std::vector<c10::Device>& devices,
                        int64_t rounds);

// Repeats steps of growing shapes with so little free memory that the allocator
// has to return cached blocks to the device. Fails if gradients have other bits
// than with all memory free. Not possible on CPUs, or if the allocator never
// had to return a block.
// `devices`: one accelerator per partition.
CheckResult check_near_full(const std::vector<c10::Device>& devices,
                            int64_t rows, int64_t width);

// Returns the mean of the squared differences: a scalar.
at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target);

// Returns three layers per partition: Linear, Tanh, Linear. Input and output
// have shape [rows, 1], boundaries between partitions [rows, width]. The
// weights depend on the seed of LibTorch's default generator.
torch::nn::Sequential wide_layers(int64_t partitions, int64_t width);

// Runs one step and returns the loss and the gradients of all parameters, as
// copies on the CPU. Seeds LibTorch's default generators with `seed` before the
// step and clears the gradients after it.
std::vector<at::Tensor> results_of_step(GPipe& pipeline,
                                        const at::Tensor& input,
                                        const at::Tensor& target,
                                        const Schedule& schedule,
                                        uint64_t seed);

// Returns the largest absolute difference of two results_of_step(), divided by
// the largest absolute value of each tensor; infinity if a value is not finite
// or a shape differs. 0 means equal.
double largest_difference(const std::vector<at::Tensor>& left,
                          const std::vector<at::Tensor>& right);

struct RankCheckOptions {
  Transfers transfers = Transfers::kHost;

  // Where the last rank ends itself with SIGKILL: "connected", after the
  // connection; "built", after the constructor of the pipeline; "forward", in
  // its first forward. Empty: nowhere.
  std::string die_at;

  // A shell command that rank 0 runs after the steps, while all processes still
  // use their devices. Empty: none.
  std::string at_end;
};

// Runs 10 training steps of one shape and 5 of another one, and compares losses
// and gradients of this rank's layers with those of GPipe on this rank's device
// alone. Fails if a bit differs. All ranks of a launcher call it.
//
// With `die_at`, passes if the failure that this rank is told names the last
// rank, and fails if there is none.
//
// Throws c10::ValueError if `die_at` is unknown, or if the world has one rank;
// PeerError if another rank fails without `die_at`.
CheckResult check_ranks(const WorldOptions& world,
                        const RankCheckOptions& options);

}  // namespace gpipe::tools
