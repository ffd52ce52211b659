// The values between layers: one tensor, a vector of tensors, or a tuple of 1
// to 8 tensors. torch::nn::Sequential chains the same types.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace gpipe::internal {

// The largest size of a tuple that a layer may take or return.
constexpr std::size_t kMaxTupleSize = 8;

namespace detail {

template <typename T>
struct is_tensor_tuple : std::false_type {};
template <typename... Ts>
struct is_tensor_tuple<std::tuple<Ts...>>
    : std::bool_constant<(sizeof...(Ts) >= 1) &&
                         (sizeof...(Ts) <= kMaxTupleSize) &&
                         (std::is_same_v<Ts, at::Tensor> && ...)> {};

template <std::size_t>
using TensorAt = at::Tensor;
template <typename Indices>
struct tensor_tuple;
template <std::size_t... I>
struct tensor_tuple<std::index_sequence<I...>> {
  using type = std::tuple<TensorAt<I>...>;
};
// A std::tuple of N tensors.
template <std::size_t N>
using TensorTuple = typename tensor_tuple<std::make_index_sequence<N>>::type;

}  // namespace detail

// A value that passes from layer to layer: a tensor, a vector or a tuple of
// tensors.
class Value {
 public:
  // The type that it holds.
  enum class Kind { kTensor, kVector, kTuple };

  Value() = default;
  Value(Kind kind, std::vector<at::Tensor> tensors)
      : kind_(kind), tensors_(std::move(tensors)) {}

  // Returns a Value that holds `value`, a tensor, a vector or a tuple of
  // tensors. Any other type compiles, and throws c10::TypeError, as between the
  // layers of a Sequential.
  template <typename T>
  static Value wrap(T value) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      return Value(Kind::kTensor, {std::move(value)});
    } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
      return Value(Kind::kVector, std::move(value));
    } else if constexpr (detail::is_tensor_tuple<T>::value) {
      return Value(Kind::kTuple,
                   std::apply(
                       [](auto&&... tensors) {
                         return std::vector<at::Tensor>{std::move(tensors)...};
                       },
                       std::move(value)));
    } else {
      throw_not_tensors(typeid(T));
    }
  }

  // Returns the content as a T. Throws c10::TypeError if it is not a T.
  template <typename T>
  T unwrap() && {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      check_is(kind_ == Kind::kTensor, typeid(T));
      return std::move(tensors_[0]);
    } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
      check_is(kind_ == Kind::kVector, typeid(T));
      return std::move(tensors_);
    } else if constexpr (detail::is_tensor_tuple<T>::value) {
      check_is(kind_ == Kind::kTuple && tensors_.size() == std::tuple_size_v<T>,
               typeid(T));
      return to_tuple<T>(std::make_index_sequence<std::tuple_size_v<T>>());
    } else {
      throw_not_tensors(typeid(T));
    }
  }

  // The type and the tensors of the content. A tensor is one element.
  Kind kind() const { return kind_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  std::vector<at::Tensor>& tensors() { return tensors_; }

  // Returns "a tensor", "a vector of 3 tensors" or "a tuple of 2 tensors".
  std::string describe() const;

 private:
  template <typename T, std::size_t... I>
  T to_tuple(std::index_sequence<I...>) {
    return T(std::move(tensors_[I])...);
  }

  [[noreturn]] static void throw_not_tensors(const std::type_info& type);
  void check_is(bool same, const std::type_info& asked) const;

  Kind kind_ = Kind::kTensor;
  std::vector<at::Tensor> tensors_;
};

}  // namespace gpipe::internal
