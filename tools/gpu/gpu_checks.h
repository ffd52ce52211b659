// Checks of a pipeline on accelerators, in one process. They compare a run with
// itself under harder conditions, so they need no stored results.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace gpipe::tools
