// The state that a recompute compares with that of its forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/graph.h"
#include "gpipe/runtime/cell/partition.h"

namespace gpipe::internal {

// Sizes and dtype of a tensor.
struct Form {
  bool defined = false;
  c10::ScalarType type = c10::kFloat;
  c10::SmallVector<int64_t, 5> sizes;

  Form() = default;
  explicit Form(const at::Tensor& tensor);
  friend bool operator==(const Form&, const Form&) = default;
  // Returns a text such as "[2, 3] Float", or "undefined".
  std::string text() const;
};

// The shape, the dtype and requires_grad of an output.
struct Outline {
  Form form;
  bool requires_grad = false;

  friend bool operator==(const Outline&, const Outline&) = default;
};

// Return the versions of tensors, which operators that change them in place
// raise.
std::vector<int64_t> versions_of(const std::vector<at::Tensor>& tensors);
std::vector<int64_t> versions_of(const std::vector<Activation>& inputs);

// Returns the parameters without gradient, with their versions.
std::vector<std::pair<at::Tensor, int64_t>> frozen_of(
    const Partition& partition);

// Returns for each module of the partition whether it is in train mode.
std::vector<bool> training_of(const Partition& partition);

std::vector<Outline> outlines_of(const std::vector<at::Tensor>& outputs);

}  // namespace gpipe::internal
