// Computes the positions of tensors in a safetensors file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "models/weights/atomic_file.h"
#include "models/weights/safetensors_header.h"
#include "models/weights/state_dict.h"

namespace gpipe::internal {

// The number of bytes before the header, which hold its length, little-endian.
constexpr std::size_t kSafetensorsLengthBytes = 8;

// The header of a file, and the order of its data.
struct SafetensorsLayout {
  SafetensorsHeader header;        // entries in the order of the dict
  std::string start;               // the length and the JSON header, as bytes
  std::vector<std::size_t> order;  // order of the data: indices into the dict
};

// Returns the layout of a file with `tensors`. Tensors with larger elements
// come first, so that each tensor is aligned to its elements. Tensors with the
// same element size keep the order of the dict.
//
// Throws c10::ValueError, see write_safetensors(). Thread-safe.
SafetensorsLayout lay_out(
    const StateDict& tensors,
    const std::map<std::string, std::string>& metadata = {});

// Writes a whole file, but does not commit it. Copies to the CPU, if needed,
// are made one at a time. Throws c10::Error if the file cannot be written.
void write_laid_out(AtomicFile& file, const StateDict& tensors,
                    const SafetensorsLayout& layout);

// Returns the values as they are written: contiguous and on the CPU. Copies
// only if necessary. Thread-safe.
at::Tensor as_written(const at::Tensor& tensor);

}  // namespace gpipe::internal
