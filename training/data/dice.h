// The Dice coefficient, a score of binary segmentation.
#pragma once

#include <ATen/core/Tensor.h>

namespace gpipe::data {

// Returns the Dice coefficient of each image as float64 of [rows]. For the
// pixels A with positive logits and the pixels B inside the mask, it is
// 2 |A and B| / (|A| + |B|), or 1 if both are empty.
//
// `logits`, `mask`: [rows, ...], of the same size. The result is on the device
// of the logits. Thread-safe.
at::Tensor dice(const at::Tensor& logits, const at::Tensor& mask);

}  // namespace gpipe::data
