// A number that tells whether two models are the same, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace gpipe::benchmarks {

// FNV-1a, 64 bits, over names, dtypes, shapes and bytes in the order of names.
// Not against malice. Tensors may be on any device.
uint64_t checksum(const std::map<std::string, at::Tensor>& tensors);

}  // namespace gpipe::benchmarks
