// A checksum that shows whether two models are equal bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace gpipe::benchmarks {

// Returns the 64-bit FNV-1a hash of the tensors' names, dtypes, shapes and
// bytes, in the order of the names. Not a cryptographic hash. Tensors may be on
// any device. Thread-safe while no other thread changes the tensors.
uint64_t checksum(const std::map<std::string, at::Tensor>& tensors);

}  // namespace gpipe::benchmarks
