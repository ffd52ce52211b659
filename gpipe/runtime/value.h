// What flows between layers: one tensor, a vector of tensors, or a tuple of
// 1 to 8 tensors, as the three are chained by torch::nn::Sequential.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace gpipe {

// Of tuples that a layer may take and return.
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
// std::tuple of N tensors.
template <std::size_t N>
using TensorTuple = typename tensor_tuple<std::make_index_sequence<N>>::type;

}  // namespace detail

// What goes from layer to layer, whatever its type: a tensor, a vector or a
// tuple of tensors.
class Value {
 public:
  // Which of these it is.
  enum class Kind { kTensor, kVector, kTuple };

  Value() = default;
  Value(Kind kind, std::vector<at::Tensor> tensors)
      : kind_(kind), tensors_(std::move(tensors)) {}

  // Takes a tensor, a vector or a tuple. Anything else compiles and is a
  // c10::TypeError, as it would be between the layers of a Sequential.
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

  // The reverse of wrap. c10::TypeError if this is not a T.
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

  // What it holds; of a tensor, one.
  Kind kind() const { return kind_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  std::vector<at::Tensor>& tensors() { return tensors_; }

  // "a tensor", "a vector of 3 tensors", "a tuple of 2 tensors".
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

}  // namespace gpipe
