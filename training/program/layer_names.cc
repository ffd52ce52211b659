#include "training/program/layer_names.h"

#include <cstdint>

#include "gpipe/base/text.h"

namespace gpipe::train_program {
LayerNames layer_names(const torch::nn::Sequential& model) {
  LayerNames names;
  int64_t index = 0;
  for (const auto& child : model->named_children()) {
    names[child.key()] = "layer " + std::to_string(index++) + " (" +
                         module_type_name(child.value()->name()) + " '" +
                         child.key() + "')";
  }
  return names;
}

}  // namespace gpipe::train_program
