// Layers that are computed again in backward, to save memory.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <ostream>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/runtime/cell/checkpointed_call.h"
#include "gpipe/runtime/cell/layer.h"
#include "gpipe/runtime/cell/value.h"

namespace gpipe {

namespace detail {

// A list of types.
template <typename... T>
struct Types {};

// Whether Impl::forward() takes arguments of these types alone. Others have
// defaults then.
template <typename Impl, typename... Inputs>
concept ForwardTakes = requires(Impl& layer, Inputs... inputs) {
  layer.forward(std::move(inputs)...);
};

// The types in front of the first one that is no value, such as the bool of
// MultiheadAttention.
template <typename Values, typename... Rest>
struct leading_values {
  using type = Values;
};
template <typename... Values, typename Next, typename... Rest>
requires kIsValue<std::decay_t<Next>>
struct leading_values<Types<Values...>, Next, Rest...>
    : leading_values<Types<Values..., std::decay_t<Next>>, Rest...> {
};

// Splits the types of inputs into those without and with a default.
template <typename Impl, typename R, typename O>
struct split_inputs {
  using Required = R;
  using Optional = O;
};
template <typename Impl, typename... R, typename Next, typename... O>
requires(sizeof...(R) == 0 ||
         !ForwardTakes<Impl, R...>) struct split_inputs<Impl, Types<R...>,
                                                        Types<Next, O...>>
    : split_inputs<Impl, Types<R..., Next>, Types<O...>> {
};

inline bool is_undefined(const at::Tensor& tensor) { return !tensor.defined(); }
inline bool is_undefined(const std::vector<at::Tensor>& tensors) {
  return tensors.empty();
}
template <typename... T>
bool is_undefined(const std::tuple<T...>& tensors) {
  return std::apply(
      [](const auto&... each) { return (is_undefined(each) && ...); }, tensors);
}

// A layer of type Impl that keeps only its inputs. It derives from Impl, so
// that names of parameters, skip tensors, norms and casts are those of the
// layer. Self: the class that derives from this one, with forward().
template <typename Self, typename Impl, typename Output, std::size_t kRequired,
          typename... Inputs>
class RecomputedBase : public Impl {
  static_assert(std::is_copy_constructible_v<Impl>,
                "Recomputed() copies the layer's object, which shares its "
                "parameters; give the layer a copy constructor, or call "
                "gpipe::checkpoint() in its forward()");
  static_assert(kIsValue<Output> && ForwardTakes<Impl, Inputs...>,
                "a recomputed layer must take and return torch::Tensor, "
                "std::vector<torch::Tensor> or std::tuple of 1 to 8 "
                "torch::Tensor; all arguments behind these must have defaults");

 public:
  explicit RecomputedBase(const Impl& layer) : Impl(with_name(layer)) {}

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device =
          std::nullopt) const override {
    const auto copy = std::dynamic_pointer_cast<Impl>(Impl::clone(device));
    TORCH_CHECK(copy, Impl::name(), "::clone() returns another type");
    return std::make_shared<Self>(*copy);
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "Recomputed(";
    Impl::pretty_print(stream);
    stream << ")";
  }

  // For torch::nn::AnyModule. An undefined tensor stands for a default.
  bool _forward_has_default_args() override {
    return kRequired < sizeof...(Inputs);
  }
  unsigned int _forward_num_required_args() override { return kRequired; }
  std::vector<torch::nn::AnyValue> _forward_populate_default_args(
      std::vector<torch::nn::AnyValue>&& given) override {
    std::vector<torch::nn::AnyValue> all = std::move(given);
    const std::size_t count = all.size();
    std::size_t index = 0;
    ((index++ < count ? void() : void(all.emplace_back(Inputs()))), ...);
    return all;
  }

 protected:
  Output recompute(Inputs... inputs) {
    std::vector<internal::Value> values;
    (values.push_back(internal::Value::wrap<Inputs>(std::move(inputs))), ...);
    const auto self =
        std::static_pointer_cast<RecomputedBase>(this->shared_from_this());
    return internal::call_checkpointed(
               erase_types<Output, Inputs...>(
                   std::make_shared<Call>(Call{self}),
                   std::index_sequence_for<Inputs...>()),
               std::move(values), self)
        .template unwrap<Output>();
  }

 private:
  struct Call {
    std::shared_ptr<RecomputedBase> layer;
    Output operator()(Inputs... inputs) {
      std::tuple<Inputs...> all(std::move(inputs)...);
      return layer->template forward_with<sizeof...(Inputs)>(all);
    }
  };

  // Calls Impl::forward() with the first kCount inputs, without the last ones
  // that are undefined and have a default.
  template <std::size_t kCount>
  Output forward_with(std::tuple<Inputs...>& inputs) {
    if constexpr (kCount > kRequired) {
      if (is_undefined(std::get<kCount - 1>(inputs))) {
        return forward_with<kCount - 1>(inputs);
      }
    }
    return [&]<std::size_t... N>(std::index_sequence<N...>) {
      return this->Impl::forward(std::move(std::get<N>(inputs))...);
    }
    (std::make_index_sequence<kCount>());
  }
};

// RecomputedBase with a forward() whose last arguments have defaults. A default
// cannot belong to a pack, so there is one class for each number of them; the
// most that a layer of LibTorch has is 6.
template <typename Impl, typename Output, typename Required, typename Optional>
class RecomputedLayer;
template <typename Impl, typename Output, typename... R>
class RecomputedLayer<Impl, Output, Types<R...>, Types<>>
    : public RecomputedBase<RecomputedLayer<Impl, Output, Types<R...>, Types<>>,
                            Impl, Output, sizeof...(R), R...> {
 public:
  using RecomputedLayer::RecomputedBase::RecomputedBase;
  Output forward(R... r) { return this->recompute(std::move(r)...); }
};
template <typename Impl, typename Output, typename... R, typename A>
class RecomputedLayer<Impl, Output, Types<R...>, Types<A>>
    : public RecomputedBase<
          RecomputedLayer<Impl, Output, Types<R...>, Types<A>>, Impl, Output,
          sizeof...(R), R..., A> {
 public:
  using RecomputedLayer::RecomputedBase::RecomputedBase;
  Output forward(R... r, A a = A()) {
    return this->recompute(std::move(r)..., std::move(a));
  }
};
template <typename Impl, typename Output, typename... R, typename A, typename B>
class RecomputedLayer<Impl, Output, Types<R...>, Types<A, B>>
    : public RecomputedBase<
          RecomputedLayer<Impl, Output, Types<R...>, Types<A, B>>, Impl, Output,
          sizeof...(R), R..., A, B> {
 public:
  using RecomputedLayer::RecomputedBase::RecomputedBase;
  Output forward(R... r, A a = A(), B b = B()) {
    return this->recompute(std::move(r)..., std::move(a), std::move(b));
  }
};
template <typename Impl, typename Output, typename... R, typename A, typename B,
          typename C>
class RecomputedLayer<Impl, Output, Types<R...>, Types<A, B, C>>
    : public RecomputedBase<
          RecomputedLayer<Impl, Output, Types<R...>, Types<A, B, C>>, Impl,
          Output, sizeof...(R), R..., A, B, C> {
 public:
  using RecomputedLayer::RecomputedBase::RecomputedBase;
  Output forward(R... r, A a = A(), B b = B(), C c = C()) {
    return this->recompute(std::move(r)..., std::move(a), std::move(b),
                           std::move(c));
  }
};
template <typename Impl, typename Output, typename... R, typename A, typename B,
          typename C, typename D>
class RecomputedLayer<Impl, Output, Types<R...>, Types<A, B, C, D>>
    : public RecomputedBase<
          RecomputedLayer<Impl, Output, Types<R...>, Types<A, B, C, D>>, Impl,
          Output, sizeof...(R), R..., A, B, C, D> {
 public:
  using RecomputedLayer::RecomputedBase::RecomputedBase;
  Output forward(R... r, A a = A(), B b = B(), C c = C(), D d = D()) {
    return this->recompute(std::move(r)..., std::move(a), std::move(b),
                           std::move(c), std::move(d));
  }
};
template <typename Impl, typename Output, typename... R, typename A, typename B,
          typename C, typename D, typename E>
class RecomputedLayer<Impl, Output, Types<R...>, Types<A, B, C, D, E>>
    : public RecomputedBase<
          RecomputedLayer<Impl, Output, Types<R...>, Types<A, B, C, D, E>>,
          Impl, Output, sizeof...(R), R..., A, B, C, D, E> {
 public:
  using RecomputedLayer::RecomputedBase::RecomputedBase;
  Output forward(R... r, A a = A(), B b = B(), C c = C(), D d = D(),
                 E e = E()) {
    return this->recompute(std::move(r)..., std::move(a), std::move(b),
                           std::move(c), std::move(d), std::move(e));
  }
};
template <typename Impl, typename Output, typename... R, typename A, typename B,
          typename C, typename D, typename E, typename F>
class RecomputedLayer<Impl, Output, Types<R...>, Types<A, B, C, D, E, F>>
    : public RecomputedBase<
          RecomputedLayer<Impl, Output, Types<R...>, Types<A, B, C, D, E, F>>,
          Impl, Output, sizeof...(R), R..., A, B, C, D, E, F> {
 public:
  using RecomputedLayer::RecomputedBase::RecomputedBase;
  Output forward(R... r, A a = A(), B b = B(), C c = C(), D d = D(), E e = E(),
                 F f = F()) {
    return this->recompute(std::move(r)..., std::move(a), std::move(b),
                           std::move(c), std::move(d), std::move(e),
                           std::move(f));
  }
};

template <typename Impl, typename Output, typename... Inputs>
struct recomputed_layer {
  using Split = split_inputs<Impl, Types<>,
                             typename leading_values<Types<>, Inputs...>::type>;
  using type =
      RecomputedLayer<Impl, std::decay_t<Output>, typename Split::Required,
                      typename Split::Optional>;
};

template <typename Impl, typename = void>
struct recomputed_type {
  // forward() is overloaded or a template, as that of Sequential.
  using type = RecomputedLayer<Impl, at::Tensor, Types<at::Tensor>, Types<>>;
};
template <typename Impl>
struct recomputed_type<Impl, std::void_t<decltype(&Impl::forward)>> {
  using type = typename forward_types<decltype(&Impl::forward)>::template apply<
      recomputed_layer, Impl>::type;
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
// std::shared_ptr to a module. Arguments with defaults keep them; an undefined
// tensor stands for its default. Arguments from the first one on that is no
// tensor, vector or tuple (need_weights of MultiheadAttention, output_size of
// ConvTranspose2d) always have their defaults. It shares the parameters,
// buffers and submodules of `layer`, and has the same names for them
// ("0.weight"), so a state dict does not change. A layer may be a
// torch::nn::Sequential; as a layer it takes and returns one tensor. Skip
// tensors of the layer (skip.h) are stashed and popped once.
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
