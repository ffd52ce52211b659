#include "trainer/layer_names.h"

#include <cstddef>
#include <cstdint>

namespace gpipe::trainer {
namespace {

// "torch::nn::BatchNorm2dImpl" is a BatchNorm2d.
std::string short_name(std::string name) {
  const std::size_t colon = name.rfind(':');
  if (colon != std::string::npos) name = name.substr(colon + 1);
  const std::string suffix = "Impl";
  if (name.size() > suffix.size() &&
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
    name.resize(name.size() - suffix.size());
  }
  return name;
}

}  // namespace

LayerNames layer_names(const torch::nn::Sequential& model) {
  LayerNames names;
  int64_t index = 0;
  for (const auto& child : model->named_children()) {
    names[child.key()] = "layer " + std::to_string(index++) + " (" +
                         short_name(child.value()->name()) + " '" +
                         child.key() + "')";
  }
  return names;
}

}  // namespace gpipe::trainer
