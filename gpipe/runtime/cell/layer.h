// The layers of a user's Sequential: how one is called on a Value and restored
// after a trial run, parts of adapters around one (Recomputed, first_output()),
// and whether layers were added.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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

// Restores a module and its submodules at the end of the scope: their modes,
// the registered parameters and buffers, and the memory, sizes and dtype of
// each. Values that are written in place into parameters stay: a copy of all
// may not fit into memory. Members that are not registered keep what a forward
// gives them, and tensors that a forward registers stay registered.
//
// If the module runs in a MetaScope, the guard must end in the same MetaScope:
// elsewhere set_data() refuses to move a tensor from the meta device.
//
// Threads: as for the module.
class RegistryGuard {
 public:
  // `values`: whether to restore values that are written in place into buffers,
  // too. Takes memory for a copy of each.
  RegistryGuard(const torch::nn::Module& module, bool values);
  ~RegistryGuard();
  RegistryGuard(RegistryGuard&&) = default;
  RegistryGuard& operator=(RegistryGuard&&) = delete;

 private:
  using Entries = torch::OrderedDict<std::string, at::Tensor>;
  struct Registry {
    std::shared_ptr<torch::nn::Module> module;
    bool training;
    Entries parameters, buffers;
  };
  struct Memory {
    at::Tensor tensor;
    at::Tensor data;   // has the memory of `tensor`
    at::Tensor value;  // a copy; undefined: not restored
  };

  void add(const Entries& entries, bool values);
  void restore() const;

  std::vector<Registry> registries_;
  std::vector<Memory> memory_;
};

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
