// Parts of adapters for layers, such as Recomputed and first_output().
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>

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
