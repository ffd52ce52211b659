#include "balancing/profile/sandbox.h"

#include <cstddef>
#include <exception>
#include <optional>
#include <typeinfo>
#include <utility>

namespace gpipe::balancing {
namespace {

using torch::nn::AnyModule;

// Returns a copy of the layer, or nothing if it cannot be copied. The reason
// does not matter, since the layer itself can be used instead.
std::optional<AnyModule> try_clone(const AnyModule& layer) {
  const auto original = layer.ptr();
  AnyModule copy;
  try {
    copy = layer.clone();
  } catch (const std::exception&) {
    return std::nullopt;
  }
  // A class derived from a cloneable one inherits a clone() that creates only
  // the base class.
  const auto copied = copy.ptr();
  if (!copied) return std::nullopt;
  const torch::nn::Module &made = *copied, &given = *original;
  if (typeid(made) != typeid(given)) return std::nullopt;

  // clone() creates every parameter anew, so a frozen one is no longer frozen.
  const auto from = original->parameters();
  const auto to = copied->parameters();
  if (to.size() != from.size()) return std::nullopt;
  for (std::size_t k = 0; k < to.size(); ++k) {
    if (from[k].defined()) to[k].set_requires_grad(from[k].requires_grad());
  }
  return copy;
}

}  // namespace

Sandbox::Sandbox(const AnyModule& layer, bool values) {
  auto copy = try_clone(layer);
  is_copy_ = copy.has_value();
  layer_ = is_copy_ ? std::move(*copy) : layer;
  if (!is_copy_) guard_.emplace(*layer_.ptr(), values);
}

std::vector<Sandbox> sandboxes_of(const torch::nn::Sequential& module,
                                  bool values) {
  std::vector<Sandbox> sandboxes;
  sandboxes.reserve(module->size());
  for (const auto& layer : *module) sandboxes.emplace_back(layer, values);
  // After all have noted the modes: layers may share a submodule.
  for (Sandbox& each : sandboxes) each.layer().ptr()->train();
  return sandboxes;
}

Visit::Visit(const torch::nn::Module& module, c10::Device device) {
  for (const at::Tensor& parameter : module.parameters()) {
    bring(parameter, device);
  }
  for (const at::Tensor& buffer : module.buffers()) bring(buffer, device);
}

Visit::~Visit() {
  for (auto& [tensor, data] : moved_) tensor.set_data(data);
}

void Visit::bring(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) return;
  at::Tensor data = tensor.variable_data();
  at::Tensor brought = data.to(device);
  moved_.emplace_back(tensor, std::move(data));
  tensor.set_data(brought);
}

internal::Value Boundary::graph_input() const {
  return {kind, internal::graph_inputs(inputs, /*leaf=*/false)};
}

Boundary without_graph(const internal::Value& value) {
  Boundary boundary{value.kind(), {}};
  for (const at::Tensor& tensor : value.tensors()) {
    boundary.inputs.push_back(internal::without_graph(tensor));
  }
  return boundary;
}

namespace {

std::optional<at::Tensor> none_if_undefined(at::Tensor tensor) {
  if (!tensor.defined()) return std::nullopt;
  return tensor;
}

}  // namespace

void ProfileTracker::save(const SkipKey& key,
                          std::optional<at::Tensor> tensor) {
  stashed_[key] = tensor ? std::move(*tensor) : at::Tensor();
}

std::optional<at::Tensor> ProfileTracker::load(const SkipKey& key) {
  // Stashed within the same layer: the graph is not cut.
  if (auto own = stashed_.extract(key)) {
    return none_if_undefined(std::move(own.mapped()));
  }
  auto found = travelling_.extract(key);
  if (!found) throw_not_stashed(key);
  std::vector<at::Tensor> popped =
      internal::graph_inputs({found.mapped()}, /*leaf=*/false);
  popped_.push_back(internal::gradient_edge(popped[0]));
  return none_if_undefined(std::move(popped[0]));
}

std::vector<at::Tensor> ProfileTracker::outputs(
    const internal::Value& output) const {
  std::vector<at::Tensor> tensors = output.tensors();
  for (const auto& [key, tensor] : stashed_) tensors.push_back(tensor);
  return tensors;
}

void ProfileTracker::end_layer() {
  for (const auto& [key, tensor] : stashed_) {
    travelling_.insert_or_assign(key, internal::without_graph(tensor));
  }
  stashed_.clear();
  popped_.clear();
}

}  // namespace gpipe::balancing
