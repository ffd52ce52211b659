#include "gpipe/sequential.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <unordered_set>

namespace gpipe {
namespace {

using torch::nn::AnyModule;
using torch::nn::Sequential;

// A model that grows. Module::named_children() would copy all names.
struct Growing {
  void append(const std::string& name, const AnyModule& layer) {
    TORCH_CHECK_VALUE(names.insert(name).second,
                      "two layers would both be called '", name,
                      "'; give their parts other names");
    model->push_back(name, layer);
  }

  Sequential model;
  std::unordered_set<std::string> names;
};

// Calls `use(name, layer)` for each layer.
template <typename Use>
void for_each_layer(const torch::nn::SequentialImpl& model, Use use) {
  const auto children = model.named_children();
  std::size_t index = 0;
  for (const AnyModule& layer : model) use(children[index++].key(), layer);
}

void append_flat(Growing& flat, const std::string& prefix,
                 torch::nn::SequentialImpl& model,
                 const std::vector<std::type_index>& nested) {
  for_each_layer(model, [&](const std::string& name, const AnyModule& layer) {
    torch::nn::Module& module = *layer.ptr();
    const bool is_nested = std::count(nested.begin(), nested.end(),
                                      std::type_index(typeid(module))) > 0;
    if (is_nested) {
      append_flat(flat, prefix + name + "_",
                  dynamic_cast<torch::nn::SequentialImpl&>(module), nested);
    } else {
      flat.append(prefix + name, layer);
    }
  });
}

}  // namespace

Sequential stack(const std::vector<Part>& parts) {
  Growing growing;
  for (const Part& part : parts) {
    if (!part.layer_.is_empty()) {
      growing.append(part.name_, part.layer_);
      continue;
    }
    TORCH_CHECK_VALUE(!part.layers_.is_empty(), "the part '", part.name_,
                      "' is null");
    for_each_layer(*part.layers_.ptr(),
                   [&](const std::string& name, const AnyModule& layer) {
                     growing.append(part.name_ + "_" + name, layer);
                   });
  }
  return growing.model;
}

std::shared_ptr<torch::nn::Module> NestedImpl::clone(
    const std::optional<torch::Device>& device) const {
  // SequentialImpl::clone() would return a SequentialImpl without names.
  auto nested = std::make_shared<NestedImpl>();
  nested->train(is_training());
  for_each_layer(*this, [&](const std::string& name, const AnyModule& layer) {
    nested->push_back(name, layer.clone(device));
  });
  return nested;
}

void NestedImpl::pretty_print(std::ostream& stream) const {
  stream << "gpipe::Nested";
}

namespace detail {

Sequential flatten(const Sequential& model,
                   const std::vector<std::type_index>& nested) {
  TORCH_CHECK_VALUE(!model.is_empty(), "flatten: the model is null");
  Growing flat;
  // train() changes all children, but the layers must keep their own modes. So
  // this comes before they are appended.
  flat.model->train(model->is_training());
  append_flat(flat, "", *model.ptr(), nested);
  return flat.model;
}

void check_count(int64_t count) {
  TORCH_CHECK_VALUE(count >= 0, "repeat: the count must be at least 0, but is ",
                    count);
}

}  // namespace detail
}  // namespace gpipe
