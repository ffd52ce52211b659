// Public: what a model or a pipeline is made of.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/runtime/value.h"

namespace gpipe {

// Threads: several may call the const functions of these types at once, and
// operator<< as the stream allows.

// Of a tensor that a layer returns; of an undefined one there is `defined`.
struct TensorSummary {
  bool defined = false;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  int64_t bytes() const;     // of its elements; 0 if undefined
  std::string text() const;  // "float32 [8, 64, 192, 192]", "undefined"
};

// One layer of the Sequential.
struct LayerSummary {
  std::string name;  // in the Sequential
  std::string type;  // "Conv2d", without namespaces and template arguments
  // Elements; a tensor that is registered twice in the model counts where it
  // is first.
  int64_t parameters = 0;
  int64_t buffers = 0;
  // Of both, in memory.
  int64_t bytes = 0;
  // Empty without an input.
  std::vector<TensorSummary> outputs;
  // Names of skip tensors.
  std::vector<std::string> stashes, pops;
};

// One partition of the cut.
struct PartitionSummary {
  std::optional<c10::Device> device;  // none for a balance without a pipeline
  int64_t first_layer = 0;            // index into Summary::layers
  int64_t layers = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;  // of its parameters and buffers
};

// What is sent from partition to partition in a forward, and its gradient in a
// backward.
struct CrossingSummary {
  int64_t from = 0, to = 0;  // partitions
  // The skip tensor's name and the layers that stash and pop it; none for what
  // the last layer of `from` returns.
  struct Skip {
    std::string name, stashed_by, popped_by;
  };
  std::optional<Skip> skip;
  // Of the whole input; none without one. (A tensor that does not grow with the
  // rows of the input is sent for each micro-batch.)
  std::optional<int64_t> bytes;
};

// What summary() returns; it can be streamed.
struct Summary {
  std::vector<LayerSummary> layers;
  // One partition for a plain Sequential.
  std::vector<PartitionSummary> partitions;
  // By destination; of each, boundaries first.
  std::vector<CrossingSummary> crossings;

  // The sums over the layers.
  int64_t parameters() const;
  int64_t bytes() const;
};

// A table of the layers under a line for each partition.
std::ostream& operator<<(std::ostream& stream, const Summary& summary);

namespace detail {
Summary summarize(const torch::nn::Sequential& model,
                  const std::vector<int64_t>& balance,
                  const std::vector<c10::Device>& devices, const Value* input);
Summary summarize(const GPipe& pipeline, const Value* input);
}  // namespace detail

// Of a Sequential; of one cut by `balance` (layers per partition); of a
// pipeline. With an input, a torch::Tensor, a std::vector<torch::Tensor> or a
// std::tuple of 1 to 8 of them, what each layer makes of it: the layers run on
// the meta device (see meta.h), whatever device they and the input are on. So
// it takes no memory and hardly any time, and changes neither parameters, nor
// buffers, nor the state of random numbers.
//
// Threads: any, while no other one uses the model.
// Errors: c10::ValueError for a model that is null or a balance that does not
// fit it; c10::TypeError for skips that do not match or an input that is no
// tensor; what a layer throws, also if it looks at values of its input, which
// there are none of.
inline Summary summary(torch::nn::Sequential model) {
  return detail::summarize(model, {}, {}, nullptr);
}
template <typename Input>
Summary summary(torch::nn::Sequential model, Input input) {
  const Value value = Value::wrap(std::move(input));
  return detail::summarize(model, {}, {}, &value);
}
template <typename Input>
Summary summary(torch::nn::Sequential model,
                const std::vector<int64_t>& balance, Input input) {
  const Value value = Value::wrap(std::move(input));
  return detail::summarize(model, balance, {}, &value);
}
inline Summary summary(GPipe pipeline) {
  return detail::summarize(pipeline, nullptr);
}
template <typename Input>
Summary summary(GPipe pipeline, Input input) {
  const Value value = Value::wrap(std::move(input));
  return detail::summarize(pipeline, &value);
}

}  // namespace gpipe
