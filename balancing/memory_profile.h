// What a model keeps in memory while it is trained.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/runtime/value.h"

namespace gpipe::balancing {

// Memory that a forward asks for, and that is kept for backward by the layers
// in `savers` (in ascending order). It is there once, however many of them are
// on one device, and once on each device that has one of them.
struct SavedTensor {
  int64_t bytes = 0;
  std::vector<int64_t> savers;
};

// Of one layer, for one micro-batch; see profile_memory().
struct LayerMemory {
  int64_t parameter_bytes = 0;  // a shared parameter: of the first that has it
  int64_t trained_bytes = 0;    // of those, what requires a gradient
  int64_t buffer_bytes = 0;
  int64_t output_bytes = 0;  // what it returns
  // What there is more after its forward than before: what it returns and
  // stashes, if that is new, and what it keeps for backward besides.
  int64_t kept_bytes = 0;
  // Most at any one time while it runs forward, on top of what is there before;
  // kept_bytes are part of it.
  int64_t forward_peak_bytes = 0;
};

// A tensor that goes past the layers between.
struct SkipMemory {
  int64_t stashed_by = 0, popped_by = 0;  // layers
  int64_t bytes = 0;
};

// Threads: const functions may be called from several at once.
struct MemoryProfile {
  int64_t input_bytes = 0;
  std::vector<LayerMemory> layers;
  std::vector<SkipMemory> skips;
  std::vector<SavedTensor> saved;

  // Kept for backward by the layers first..last-1 on one device. O(n log m),
  // for n saved tensors of at most m savers.
  int64_t saved_bytes(int64_t first, int64_t last) const;
  // What comes into them from other partitions: what the layer before returns,
  // and skips. std::out_of_range for `first` beyond the layers. O(skips).
  int64_t incoming_bytes(int64_t first, int64_t last) const;
};

namespace detail {
// The first of `chunks` micro-batches, as a pipeline splits them. A view.
Value first_microbatch(const Value& input, int64_t chunks);

MemoryProfile profile_memory(const torch::nn::Sequential& module,
                             const Value& input);
}  // namespace detail

// Of one forward of `module` in training mode on `input`, best of the size of
// one micro-batch. It is not run: its layers are, one after the other, on the
// meta device (gpipe/meta.h), where tensors have shapes and no memory. So
// models of any size are profiled in a moment, and the bytes are those that
// tensors ask for on a CPU, to the byte; an accelerator's kernels may keep
// other things, and its allocator rounds up.
//
// `module` and `input` are unchanged, and may be on any device.
// Errors: c10::ValueError for a module that is null; c10::TypeError for skips
// that do not match, or an input or output that is no tensor; and whatever a
// layer throws, also if it looks at values.
// Threads: any, while no other one uses `module`: a layer that has no clone()
// is run itself, in training mode.
template <typename Input>
MemoryProfile profile_memory(torch::nn::Sequential module, Input input) {
  return detail::profile_memory(module, Value::wrap(std::move(input)));
}

}  // namespace gpipe::balancing
