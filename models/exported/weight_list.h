// The list of weights in an archive, and their values.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "models/exported/archive.h"
#include "models/exported/program.h"

namespace gpipe::exported {

// Returns the weights and constants of an archive, without their values.
// Weights with equal bytes, sizes and strides are tied, except weights of the
// meta device, which have no bytes. Throws c10::ValueError if an entry is
// damaged, reaches beyond its record, or is pickled.
std::vector<Weight> read_weight_list(Archive& archive);

// Returns a tensor on the CPU with the values of a weight. It owns its memory.
// Under a MetaGuard it is on the meta device, and no values are read.
// Throws c10::ValueError if the archive lacks the record, if the record is too
// small, or if the weight has no values and there is no MetaGuard.
at::Tensor read_weight(Archive& archive, const Weight& weight);

// Returns a tensor with the dtype and the sizes of a weight, on the CPU or,
// under a MetaGuard, on the meta device. Its elements are NaN, or 0 if they are
// integers, so that a weight that gets no values later is noticed.
at::Tensor weight_without_values(const Weight& weight);

}  // namespace gpipe::exported
