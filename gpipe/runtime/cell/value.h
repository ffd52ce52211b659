// The values between layers: one tensor, a vector of tensors, or a tuple of 1
// to 8 tensors. torch::nn::Sequential chains the same types. A mini-batch of
// them, and a loss on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "gpipe/microbatches.h"
#include "gpipe/weighted_loss.h"

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

  // Whether a Value can hold a T.
  template <typename T>
  static constexpr bool kHolds = std::is_same_v<T, at::Tensor> ||
                                 std::is_same_v<T, std::vector<at::Tensor>> ||
                                 detail::is_tensor_tuple<T>::value;

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

  // Throws c10::TypeError, for a value of `type`.
  [[noreturn]] static void throw_not_tensors(const std::type_info& type);

 private:
  template <typename T, std::size_t... I>
  T to_tuple(std::index_sequence<I...>) {
    return T(std::move(tensors_[I])...);
  }

  void check_is(bool same, const std::type_info& asked) const;

  Kind kind_ = Kind::kTensor;
  std::vector<at::Tensor> tensors_;
};

// The type of what a micro-batch gets of a T: of Microbatches<U> a U, else a T.
template <typename T>
struct PartOfBatch {
  using type = T;
};
template <typename T>
struct PartOfBatch<Microbatches<T>> {
  using type = T;
};
template <typename T>
using PartOf = typename PartOfBatch<T>::type;

// A mini-batch: one Value that the pipeline splits, or one per micro-batch. Or
// something else, on a rank that does not read its argument: then the functions
// that read it throw c10::TypeError.
class Batch {
 public:
  // An empty value, for a rank that does not read its argument.
  Batch() : values_(1) {}
  // A batch to be split.
  /* implicit */ Batch(Value whole) { values_.push_back(std::move(whole)); }
  // A batch that is already split.
  /* implicit */ Batch(std::vector<Value> parts)
      : values_(std::move(parts)), split_(true) {}

  // Returns a Batch of `value`: Microbatches, or what Value::wrap() takes, or
  // something else.
  template <typename T>
  static Batch wrap(T value) {
    if constexpr (Value::kHolds<T>) {
      return Batch(Value::wrap(std::move(value)));
    } else {
      return Batch(typeid(T), /*split=*/false);
    }
  }
  template <typename T>
  static Batch wrap(Microbatches<T> value) {
    if constexpr (Value::kHolds<T>) {
      std::vector<Value> parts;
      parts.reserve(value.parts.size());
      for (T& part : value.parts) parts.push_back(Value::wrap(std::move(part)));
      return Batch(std::move(parts));
    } else {
      return Batch(typeid(T), /*split=*/true);
    }
  }

  // Whether the batch is already split.
  bool split() const { return split_; }
  // The number of parts, if the batch is split.
  int64_t parts() const { return static_cast<int64_t>(values().size()); }
  // The parts; a single one if the batch is not split.
  const std::vector<Value>& values() const {
    if (other_) Value::throw_not_tensors(*other_);
    return values_;
  }
  // The whole value; the batch must not be split.
  const Value& whole() const { return values().front(); }

  // Returns the content as a T, for a batch that is not split. Throws
  // c10::TypeError if the content is not a T.
  template <typename T>
  T unwrap() && {
    (void)values();
    return std::move(values_.front()).template unwrap<T>();
  }
  // Returns the parts as Ts. Throws c10::TypeError if a part is not a T.
  template <typename T>
  Microbatches<T> unwrap_parts() && {
    Microbatches<T> result;
    result.parts.reserve(values_.size());
    for (Value& part : values_) {
      result.parts.push_back(std::move(part).template unwrap<T>());
    }
    return result;
  }

 private:
  Batch(const std::type_info& other, bool split)
      : values_(1), split_(split), other_(&other) {}

  std::vector<Value> values_;
  bool split_ = false;
  const std::type_info* other_ = nullptr;  // the type of something else
};

// A loss function on Values. Its result has no weight if the loss is a mean
// over the rows of the micro-batch.
class LossFunction {
 public:
  LossFunction() = default;
  // `function(output, target)` returns an at::Tensor or a WeightedLoss.
  template <typename Function,
            typename Result = std::invoke_result_t<Function&, Value, Value>>
  /* implicit */ LossFunction(Function function)
      : weighted_(std::is_same_v<Result, WeightedLoss>) {
    if constexpr (std::is_same_v<Result, WeightedLoss>) {
      function_ = std::move(function);
    } else {
      function_ = [function = std::move(function)](
                      Value output, Value target) mutable -> WeightedLoss {
        return {function(std::move(output), std::move(target)), at::Tensor()};
      };
    }
  }

  bool weighted() const { return weighted_; }
  WeightedLoss operator()(Value output, Value target) const {
    return function_(std::move(output), std::move(target));
  }

 private:
  std::function<WeightedLoss(Value, Value)> function_;
  bool weighted_ = false;
};

}  // namespace gpipe::internal
