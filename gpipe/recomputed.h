// Public: layers that are computed again in backward, to save memory.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <ostream>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/layer_adapter.h"
#include "gpipe/runtime/cell/checkpointed_call.h"
#include "gpipe/runtime/cell/value.h"

namespace gpipe {

namespace detail {

// A layer of type Impl whose forward keeps only its inputs. It derives from
// Impl, so that names of parameters, skip tensors, norms and casts are those of
// the layer.
template <typename Impl, typename Output, typename... Inputs>
class RecomputedLayer : public Impl {
  static_assert(std::is_copy_constructible_v<Impl>,
                "Recomputed() copies the layer's object, which shares its "
                "parameters; give the layer a copy constructor, or call "
                "gpipe::checkpoint() in its forward()");
  static_assert(kIsValue<std::decay_t<Output>> &&
                    (kIsValue<std::decay_t<Inputs>> && ...),
                "a recomputed layer must take and return torch::Tensor, "
                "std::vector<torch::Tensor> or std::tuple of 1 to 8 "
                "torch::Tensor");

 public:
  explicit RecomputedLayer(const Impl& layer) : Impl(with_name(layer)) {}

  std::decay_t<Output> forward(std::decay_t<Inputs>... inputs) {
    std::vector<internal::Value> values;
    (values.push_back(
         internal::Value::wrap<std::decay_t<Inputs>>(std::move(inputs))),
     ...);
    const auto self =
        std::static_pointer_cast<RecomputedLayer>(this->shared_from_this());
    auto call = std::make_shared<Call>(Call{self});
    return internal::call_checkpointed(
               erase_types<std::decay_t<Output>, std::decay_t<Inputs>...>(
                   std::move(call), std::index_sequence_for<Inputs...>()),
               std::move(values), self)
        .template unwrap<std::decay_t<Output>>();
  }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device =
          std::nullopt) const override {
    const auto copy = std::dynamic_pointer_cast<Impl>(Impl::clone(device));
    TORCH_CHECK(copy, Impl::name(), "::clone() returns another type");
    return std::make_shared<RecomputedLayer>(*copy);
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "Recomputed(";
    Impl::pretty_print(stream);
    stream << ")";
  }

 private:
  struct Call {
    std::shared_ptr<RecomputedLayer> layer;
    std::decay_t<Output> operator()(std::decay_t<Inputs>... inputs) {
      return layer->Impl::forward(std::move(inputs)...);
    }
  };
};

template <typename Impl, typename = void>
struct recomputed_type {
  // forward() is overloaded or a template, as that of Sequential.
  using type = RecomputedLayer<Impl, at::Tensor, at::Tensor>;
};
template <typename Impl>
struct recomputed_type<Impl, std::void_t<decltype(&Impl::forward)>> {
  using type = typename forward_types<decltype(&Impl::forward)>::template apply<
      RecomputedLayer, Impl>;
};

}  // namespace detail

// The module of Recomputed: an Impl that is computed again in backward.
template <typename Impl>
using RecomputedImpl = typename detail::recomputed_type<Impl>::type;

// A layer that keeps only its inputs for its backward, and is computed again
// there, see checkpoint() (checkpoint.h):
//
//   torch::nn::Sequential model(gpipe::Recomputed(Block(64)), Block(64));
//
// It takes and returns the same types as `layer`, a module holder or a
// std::shared_ptr to a module. It shares the parameters, buffers and submodules
// of `layer`, and has the same names for them ("0.weight"), so a state dict
// does not change. A layer may be a torch::nn::Sequential; as a layer it takes
// and returns one tensor. Skip tensors of the layer (skip.h) are stashed and
// popped once.
//
// The object of `layer` is copied. So use the new layer alone from then on:
// train() of the old one does not reach it. A layer whose type is not known,
// as in a torch::nn::AnyModule, cannot be wrapped; call checkpoint() in its
// forward().
//
// Buffers and training mode: each forward with gradients copies the buffers of
// the layer for its duration, and keeps the copies of those that the forward
// changes. The second call sees these values, and leaves the buffers as they
// are. Throws, in backward, c10::Error with the names if a parameter, the
// training mode, or a buffer that the forward does not change itself, has
// changed since the forward.
template <typename Layer>
class Recomputed
    : public torch::nn::ModuleHolder<
          RecomputedImpl<typename detail::module_type<Layer>::type>> {
  using Impl = typename detail::module_type<Layer>::type;

 public:
  // Throws c10::ValueError if `layer` is null.
  explicit Recomputed(const Layer& layer)
      : torch::nn::ModuleHolder<RecomputedImpl<Impl>>(
            std::make_shared<RecomputedImpl<Impl>>(
                detail::module_in(layer, "Recomputed()"))) {}
};

}  // namespace gpipe
