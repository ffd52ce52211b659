// The layers of a user's Sequential: how one is called on a Value, parts of
// adapters around one (Recomputed, first_output()), and whether layers were
// added.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

// Returns the content of `value` as the type that it holds (tensor, vector or
// tuple).
torch::nn::AnyValue to_any_value(Value value);

// Returns layer.forward(input); `input` is passed as the type that it holds
// (tensor, vector or tuple). Throws c10::TypeError if the layer returns
// anything but tensors, c10::Error (as torch::nn::Sequential does) if the layer
// takes another type, and whatever the layer throws.
Value call_layer(torch::nn::AnyModule& layer, Value input);

// Does the same for a layer that runs on meta tensors. Adds to the text of a
// c10::Error which layer it was and what to do if the layer needs values.
// `index`, `name`: of the layer in its Sequential.
Value call_layer_on_meta(torch::nn::AnyModule& layer, Value input,
                         std::size_t index, const std::string& name);

}  // namespace gpipe::internal

namespace gpipe::detail {

// The types of Impl::forward(). Undefined if it is overloaded or a template.
template <typename Method>
struct forward_types;
template <typename Impl, typename R, typename... A>
struct forward_types<R (Impl::*)(A...)> {
  using Output = R;
  template <template <typename, typename, typename...> class Template,
            typename Layer>
  using apply = Template<Layer, R, A...>;
};
template <typename Impl, typename R, typename... A>
struct forward_types<R (Impl::*)(A...) const>
    : forward_types<R (Impl::*)(A...)> {};

// The module type of a layer: a module holder, or a std::shared_ptr to a
// module.
template <typename Layer>
struct module_type {
  using type = typename Layer::ContainedType;
};
template <typename Impl>
struct module_type<std::shared_ptr<Impl>> {
  using type = Impl;
};

// Returns the module of `layer`. Throws c10::ValueError, with the name `caller`
// of a function, if `layer` is null.
template <typename Impl>
const Impl& module_in(const std::shared_ptr<Impl>& layer, const char* caller) {
  TORCH_CHECK_VALUE(layer, caller, " got a null layer");
  return *layer;
}
template <typename Impl>
const Impl& module_in(const torch::nn::ModuleHolder<Impl>& layer,
                      const char* caller) {
  TORCH_CHECK_VALUE(!layer.is_empty(), caller, " got a null layer");
  return *layer;
}

// Returns `layer`, whose copies have its name. A module finds its name by its
// type on the first call of name(), and keeps it.
template <typename Impl>
const Impl& with_name(const Impl& layer) {
  layer.name();
  return layer;
}

}  // namespace gpipe::detail

namespace gpipe::internal {

// A Sequential, as it was when a pipeline took its layers. A pipeline does not
// see layers that are added to the Sequential later. Holds no layer.
//
// Threads: as for the Sequential, check() reads it.
class SourceModel {
 public:
  explicit SourceModel(const torch::nn::Sequential& model)
      : model_(model.ptr()), layers_(model->size()) {}

  // Throws c10::ValueError if the Sequential has another number of layers now.
  void check() const {
    const auto model = model_.lock();
    TORCH_CHECK_VALUE(!model || model->size() == layers_, "the Sequential has ",
                      model->size(), " layers now, but it had ", layers_,
                      " when the pipeline was made of it, and the pipeline "
                      "runs these; make the pipeline after the last "
                      "push_back()");
  }

 private:
  std::weak_ptr<torch::nn::SequentialImpl> model_;
  std::size_t layers_;
};

}  // namespace gpipe::internal
