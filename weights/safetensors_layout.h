// Where tensors stand in a safetensors file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weights/safetensors_header.h"
#include "weights/state_dict.h"

namespace gpipe {

// Before the header, little-endian: how many bytes it has.
constexpr std::size_t kSafetensorsLengthBytes = 8;

struct SafetensorsLayout {
  SafetensorsHeader header;        // entries in the order of the dict
  std::string start;               // the length, and the header
  std::vector<std::size_t> order;  // of the dict's tensors behind it
};

// Larger elements come first, so that each tensor is aligned to its own; of
// equal sizes, in the order of the dict.
//
// Errors: c10::ValueError, see write_safetensors(). Threads: any.
SafetensorsLayout lay_out(
    const StateDict& tensors,
    const std::map<std::string, std::string>& metadata = {});

// The values as they are written: contiguous, on the CPU. A copy only if need
// be.
at::Tensor as_written(const at::Tensor& tensor);

}  // namespace gpipe
