// Prints the layers, partitions and transfers of a model or a pipeline.
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
#include "gpipe/runtime/cell/value.h"

namespace gpipe {

// Threads: several threads may call the const functions of these types at once.
// operator<< may run on any thread that may use the stream.

// A tensor that a layer returns. If it is undefined, only `defined` is set.
struct TensorSummary {
  bool defined = false;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  int64_t bytes() const;     // of the elements; 0 if undefined
  std::string text() const;  // "float32 [8, 64, 192, 192]", "undefined"
};

// One layer of the Sequential.
struct LayerSummary {
  std::string name;  // in the Sequential
  std::string type;  // "Conv2d", without namespaces and template arguments
  // Numbers of elements. A tensor that is registered twice in the model counts
  // only at its first layer.
  int64_t parameters = 0;
  int64_t buffers = 0;
  // The memory of parameters and buffers, in bytes.
  int64_t bytes = 0;
  // Empty if summary() got no input.
  std::vector<TensorSummary> outputs;
  // The names of skip tensors.
  std::vector<std::string> stashes, pops;
};

// One partition of the model.
struct PartitionSummary {
  std::optional<c10::Device> device;  // none for a balance without a pipeline
  int64_t first_layer = 0;            // index into Summary::layers
  int64_t layers = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;  // of parameters and buffers
};

// A transfer between two partitions: activations in a forward, and their
// gradient in the opposite direction in a backward.
struct CrossingSummary {
  int64_t from = 0, to = 0;  // partitions
  // The skip tensor's name and the layers that stash and pop it. nullopt for
  // the boundary, that is the output of the last layer of `from`.
  struct Skip {
    std::string name, stashed_by, popped_by;
  };
  std::optional<Skip> skip;
  // The bytes for the whole mini-batch; nullopt if summary() got no input. A
  // tensor whose size does not depend on the rows of the input is sent once per
  // micro-batch.
  std::optional<int64_t> bytes;
};

// The result of summary(). It can be streamed.
struct Summary {
  std::vector<LayerSummary> layers;
  // A plain Sequential has one partition.
  std::vector<PartitionSummary> partitions;
  // Ordered by destination. For each destination the boundary comes first.
  std::vector<CrossingSummary> crossings;

  // Return the sums over the layers.
  int64_t parameters() const;
  int64_t bytes() const;
};

// Prints a table of the layers, with a line before each partition's layers.
std::ostream& operator<<(std::ostream& stream, const Summary& summary);

namespace detail {
Summary summarize(const torch::nn::Sequential& model,
                  const std::vector<int64_t>& balance,
                  const std::vector<c10::Device>& devices,
                  const internal::Value* input);
Summary summarize(const GPipe& pipeline, const internal::Value* input);
}  // namespace detail

// Returns a summary of a Sequential, of a Sequential cut by `balance` (layers
// per partition), or of a pipeline.
//
// `input`: if given, also describes the output of each layer. It is a
// torch::Tensor, a std::vector<torch::Tensor> or a std::tuple of 1 to 8
// tensors. The layers run on the meta device (see meta.h), whatever the devices
// of the layers and the input. So this takes no memory and very little time,
// and does not change modes, parameters, buffers or random generators. Members
// of a layer that are not registered with it keep what its forward gives them.
//
// Throws c10::ValueError if the model is null or the balance does not fit it.
// Throws c10::TypeError if skips do not match or the input is not a tensor.
// Rethrows what a layer throws. The text of a c10::Error also has the layer's
// index, name and type. A layer throws if it reads a value (item()), or if a
// shape depends on values (nonzero, masked_select, unique).
// Threads: any thread, as long as no other thread uses the model.
inline Summary summary(torch::nn::Sequential model) {
  return detail::summarize(model, {}, {}, nullptr);
}
inline Summary summary(torch::nn::Sequential model,
                       const std::vector<int64_t>& balance) {
  return detail::summarize(model, balance, {}, nullptr);
}
template <typename Input>
Summary summary(torch::nn::Sequential model, Input input) {
  const internal::Value value = internal::Value::wrap(std::move(input));
  return detail::summarize(model, {}, {}, &value);
}
template <typename Input>
Summary summary(torch::nn::Sequential model,
                const std::vector<int64_t>& balance, Input input) {
  const internal::Value value = internal::Value::wrap(std::move(input));
  return detail::summarize(model, balance, {}, &value);
}
inline Summary summary(GPipe pipeline) {
  return detail::summarize(pipeline, nullptr);
}
template <typename Input>
Summary summary(GPipe pipeline, Input input) {
  const internal::Value value = internal::Value::wrap(std::move(input));
  return detail::summarize(pipeline, &value);
}

}  // namespace gpipe
