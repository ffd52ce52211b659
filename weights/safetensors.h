// Files in the safetensors format: a JSON header and raw bytes of tensors.
// Described at https://github.com/huggingface/safetensors#format.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "weights/state_dict.h"

namespace gpipe {

// "__metadata__" of a file: free texts by name.
using SafetensorsMetadata = std::map<std::string, std::string>;

// What is in a file.
struct Safetensors {
  StateDict tensors;  // on the CPU, contiguous, in the order of the header
  SafetensorsMetadata metadata;
};

// Reads a file, each tensor straight into its memory. Nothing is allocated for
// what the file only claims to have: tensors take as many bytes as their data
// has in the file, and everything else a small multiple of the header's.
//
// Errors: c10::ValueError, with the path, for a file that cannot be read or
// breaks the format: a header beyond the file or 100 MB, JSON that is not a
// safetensors header (or has a name twice), a dtype that LibTorch lacks,
// offsets with holes, overlaps or a size that does not fit the shape.
// Threads: any.
Safetensors read_safetensors(const std::string& path);

// The same from memory, which is not needed afterwards. `source` names it in
// errors.
Safetensors parse_safetensors(const void* bytes, std::size_t size,
                              const std::string& source = "safetensors");

// Writes a file, which appears when it is complete (weights/atomic_file.h). The
// header has the names in the dict's order; the data is in the order of
// decreasing element size, so that each tensor is aligned to it. Tensors may be
// strided and on any device. The format does not know that two tensors share
// memory: each is written in full.
//
// Errors: c10::ValueError, naming the tensor, for an undefined or sparse one,
// one without values (on the meta device), a dtype that the format lacks
// (complex128, ...), names that are not UTF-8 or are "__metadata__", a header
// over 100 MB; c10::Error if the file cannot be written.
// Threads: any, while no other one changes the tensors.
void write_safetensors(const std::string& path, const StateDict& tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace gpipe
