// What a recompute must find again of an output.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace gpipe::internal {

// The shape, the dtype and requires_grad of an output.
struct Outline {
  bool defined = false;
  bool requires_grad = false;
  c10::ScalarType type = c10::kFloat;
  c10::SmallVector<int64_t, 5> sizes;

  friend bool operator==(const Outline& a, const Outline& b) {
    return a.defined == b.defined && a.requires_grad == b.requires_grad &&
           a.type == b.type && a.sizes == b.sizes;
  }
};

}  // namespace gpipe::internal
