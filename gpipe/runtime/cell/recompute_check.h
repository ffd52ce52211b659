// What a recompute compares with its forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/graph.h"
#include "gpipe/runtime/cell/outline.h"
#include "gpipe/runtime/cell/partition.h"

namespace gpipe::internal {

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
