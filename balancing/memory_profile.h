// The memory that a model's layers take in training.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::balancing {

// Memory that one forward allocates and that the layers in `savers` (in
// ascending order) keep for backward. It is allocated once on each device that
// runs at least one of these layers.
struct SavedTensor {
  int64_t bytes = 0;
  std::vector<int64_t> savers;
};

// What the operators of one name keep for the backward of a layer.
struct OperatorMemory {
  // Of the autograd node, such as "AddmmBackward0", or the type of a
  // torch::autograd::Function.
  std::string name;
  int64_t bytes = 0;
};

// The memory of one layer for one micro-batch; see profile_memory().
struct LayerMemory {
  // A parameter that several layers share counts for the first of them only.
  int64_t parameter_bytes = 0;
  int64_t trained_bytes = 0;  // the part of them that requires a gradient
  int64_t buffer_bytes = 0;
  // The bytes of buffers and of parameters that require no gradient.
  int64_t fixed_bytes() const {
    return parameter_bytes - trained_bytes + buffer_bytes;
  }
  int64_t output_bytes = 0;  // of the returned tensors
  // How much more memory is allocated after the layer's forward than before:
  // its new outputs, its new stashed tensors, and what it keeps for backward
  // besides.
  int64_t kept_bytes = 0;
  // The peak during the layer's forward, on top of what was allocated before
  // it. Includes the kept_bytes.
  int64_t forward_peak_bytes = 0;
  // The bytes that the layer keeps for backward if it is alone on its device,
  // by operator, in the order of the forward. Each tensor counts once, for the
  // first operator that keeps it. What gpipe::checkpoint() keeps counts for the
  // first operator of its function. Operators that keep nothing are left out.
  std::vector<OperatorMemory> operators;
};

// A skip tensor, which goes directly from one layer to a later one.
struct SkipMemory {
  int64_t stashed_by = 0, popped_by = 0;  // indices of layers
  int64_t bytes = 0;
};

// The memory of a whole model; see profile_memory().
//
// Threads: several threads may call const functions at once.
struct MemoryProfile {
  int64_t input_bytes = 0;
  std::vector<LayerMemory> layers;
  std::vector<SkipMemory> skips;
  std::vector<SavedTensor> saved;
  // What is held instead of `saved` between the two parts of a split backward:
  // the part of it that the weight part needs, and the gradients that the input
  // part leaves for it. `savers` are the layers that hold it. Empty: not known.
  std::vector<SavedTensor> saved_for_weights;
};

namespace detail {
// Returns the first of the `chunks` micro-batches into which a pipeline splits
// `input`, with the elements in `unsplit` whole. It is a view. Throws
// c10::ValueError as the pipeline does if the input cannot be split.
internal::Value first_microbatch(const internal::Value& input, int64_t chunks,
                                 const std::vector<int64_t>& unsplit);

MemoryProfile profile_memory(const torch::nn::Sequential& module,
                             const internal::Value& input);
}  // namespace detail

// Measures the memory of each layer of `module` in one forward in training mode
// on `input`. Give an input of the size of one micro-batch.
//
// The layers run one after the other on the meta device (gpipe/meta.h), where
// tensors have shapes but no memory. So models of any size are profiled
// quickly. What a layer keeps is measured, operator by operator: the bytes that
// are free again after the release of its autograd node. So it includes what a
// torch::autograd::Function keeps outside of saved tensors. The bytes are
// exactly those that tensors allocate on a CPU, but for
// - LSTMs in float32 and bfloat16, whose kernel of oneDNN keeps two to seven
//   times as much;
// - recurrent layers with batch_first, which copy the transposed input once per
//   direction, and whose split backward keeps up to a third more;
// - norms whose parameters are bfloat16, which keep two bytes less for each
//   statistic.
// An accelerator's kernels may save other tensors, and its allocator rounds
// sizes up. The peak of a forward has no buffers that a kernel frees before it
// returns.
//
// Each layer then runs once more, with the first part of a split backward. A
// layer whose backward cannot run on the meta device counts as one that needs
// all it has saved, and the gradients of its outputs, for the weight part.
//
// `module` and `input` may be on any device and stay unchanged, except for
// members that a layer without clone() does not register and its forward sets.
//
// Throws c10::ValueError if `module` is null, c10::TypeError if its skips do
// not match or if an input or output is not a tensor, and whatever a layer
// throws. The text of a c10::Error also has the layer's index, name and type. A
// layer throws if it reads a value (item()), or if a shape depends on values
// (nonzero, masked_select, unique).
// Threads: any thread may call this while no other thread uses `module`. A
// layer that has no clone() is run itself, in training mode.
template <typename Input>
MemoryProfile profile_memory(torch::nn::Sequential module, Input input) {
  return detail::profile_memory(module,
                                internal::Value::wrap(std::move(input)));
}

}  // namespace gpipe::balancing
