// Compares tensors of two calls by their sizes and dtypes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>

namespace gpipe::internal {

// The sizes and the dtype of a tensor, and whether it requires grad.
struct Outline {
  bool defined = false;
  c10::ScalarType type = c10::kFloat;
  c10::SmallVector<int64_t, 5> sizes;
  bool requires_grad = false;

  // `with_grad`: whether requires_grad counts. If not, it stays false.
  explicit Outline(const at::Tensor& tensor, bool with_grad = false);
  friend bool operator==(const Outline&, const Outline&) = default;
  // Returns a text such as "[2, 3] Float", "[2, 3] Float that requires grad" or
  // "undefined".
  std::string text() const;
};

}  // namespace gpipe::internal
