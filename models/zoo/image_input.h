// The input check of the models for images.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gpipe::models {

// Throws c10::ValueError, naming `model`, unless `input` is [batch, `channels`,
// height, width].
//
// Threads: pure function.
void check_images(const char* model, const at::Tensor& input, int64_t channels);

}  // namespace gpipe::models
