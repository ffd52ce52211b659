// Layers that return more than tensors between layers may be.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <ostream>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/layer.h"

namespace gpipe {

namespace detail {

inline at::Tensor first_tensor(at::Tensor tensor) { return tensor; }
inline at::Tensor first_tensor(std::vector<at::Tensor> tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(),
                    "first_output(): the layer returned an empty vector");
  return std::move(tensors.front());
}
template <typename First, typename... Rest>
at::Tensor first_tensor(std::tuple<First, Rest...> values) {
  return first_tensor(std::move(std::get<0>(values)));
}

// A layer of type Impl whose forward takes one Input and returns the first
// tensor of the layer's output.
template <typename Impl, typename Input>
class FirstOutputLayer : public Impl {
  static_assert(std::is_copy_constructible_v<Impl>,
                "first_output() copies the layer's object, which shares its "
                "parameters; give the layer a copy constructor");

 public:
  explicit FirstOutputLayer(const Impl& layer) : Impl(with_name(layer)) {}

  at::Tensor forward(Input input) {
    return first_tensor(Impl::forward(std::move(input)));
  }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device =
          std::nullopt) const override {
    const auto copy = std::dynamic_pointer_cast<Impl>(Impl::clone(device));
    TORCH_CHECK(copy, Impl::name(), "::clone() returns another type");
    return std::make_shared<FirstOutputLayer>(*copy);
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "FirstOutput(";
    Impl::pretty_print(stream);
    stream << ")";
  }

  // For torch::nn::AnyModule: the defaults of Impl::forward() are those of
  // another signature.
  bool _forward_has_default_args() override { return false; }
};

// The type of the first argument of forward(); torch::Tensor if forward() is
// overloaded or a template.
template <typename Layer, typename Output, typename First = at::Tensor,
          typename... Rest>
struct first_argument {
  using type = std::decay_t<First>;
};
template <typename Impl, typename = void>
struct first_output_input {
  using type = at::Tensor;
};
template <typename Impl>
struct first_output_input<Impl, std::void_t<decltype(&Impl::forward)>> {
  using type = typename forward_types<decltype(&Impl::forward)>::template apply<
      first_argument, Impl>::type;
};

}  // namespace detail

// The module of first_output().
template <typename Impl>
using FirstOutputImpl =
    detail::FirstOutputLayer<Impl,
                             typename detail::first_output_input<Impl>::type>;

// Returns a layer that calls `layer` and returns the first tensor of its
// output, for layers whose output cannot pass to the next layer of a
// Sequential:
//
//   torch::nn::Sequential model(
//       gpipe::first_output(torch::nn::LSTM(
//           torch::nn::LSTMOptions(8, 16).batch_first(true))),
//       torch::nn::Linear(16, 1));
//
// A pipeline splits dimension 0, which is the time of RNN, GRU and LSTM without
// batch_first.
//
// `layer`: a module holder or a std::shared_ptr to a module. The output may be
// a tensor, a vector of tensors, or a tuple, nested at any depth; the first
// tensor is that of the first element. The new layer takes the first argument
// of forward(); all others get their defaults.
//
// The new layer shares the parameters, buffers and submodules of `layer`, and
// has the same names for them ("0.weight_ih_l0"). The object of `layer` is
// copied, so use the new layer alone from then on.
//
// Throws c10::ValueError if `layer` is null, and, in forward(), if the layer
// returns an empty vector.
template <typename Layer>
torch::nn::ModuleHolder<
    FirstOutputImpl<typename detail::module_type<Layer>::type>>
first_output(const Layer& layer) {
  using Impl = FirstOutputImpl<typename detail::module_type<Layer>::type>;
  return std::make_shared<Impl>(detail::module_in(layer, "first_output()"));
}

}  // namespace gpipe
