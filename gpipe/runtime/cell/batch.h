// The input or the target of a pipeline: whole, or already split.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/microbatches.h"
#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

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

// A mini-batch: one Value that the pipeline splits, or one per micro-batch.
class Batch {
 public:
  // An empty value, for a rank that does not read its argument.
  Batch() : values_(1) {}
  // A batch to be split.
  /* implicit */ Batch(Value whole) { values_.push_back(std::move(whole)); }
  // A batch that is already split.
  /* implicit */ Batch(std::vector<Value> parts)
      : values_(std::move(parts)), split_(true) {}

  // Returns a Batch that holds `value`: Microbatches, or what Value::wrap()
  // takes. Throws as Value::wrap() does.
  template <typename T>
  static Batch wrap(T value) {
    return Batch(Value::wrap(std::move(value)));
  }
  template <typename T>
  static Batch wrap(Microbatches<T> value) {
    std::vector<Value> parts;
    parts.reserve(value.parts.size());
    for (T& part : value.parts) parts.push_back(Value::wrap(std::move(part)));
    return Batch(std::move(parts));
  }

  // Whether the batch is already split.
  bool split() const { return split_; }
  // The number of parts, if the batch is split.
  int64_t parts() const { return static_cast<int64_t>(values_.size()); }
  // The parts; a single one if the batch is not split.
  const std::vector<Value>& values() const { return values_; }
  // The whole value; the batch must not be split.
  const Value& whole() const { return values_.front(); }

  // Returns the content as a T, for a batch that is not split. Throws
  // c10::TypeError if the content is not a T.
  template <typename T>
  T unwrap() && {
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
  std::vector<Value> values_;
  bool split_ = false;
};

}  // namespace gpipe::internal
