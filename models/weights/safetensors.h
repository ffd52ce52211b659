// Reads and writes files in the safetensors format: a JSON header and the raw
// bytes of tensors. See https://github.com/huggingface/safetensors#format.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "models/weights/state_dict.h"

namespace gpipe {

// The "__metadata__" of a file: free texts by name.
using SafetensorsMetadata = std::map<std::string, std::string>;

// The contents of a file.
struct Safetensors {
  StateDict tensors;  // on the CPU, contiguous, in the order of the header
  SafetensorsMetadata metadata;
};

// Reads a file, each tensor directly into its own memory. Memory is allocated
// only for bytes that the file really has: for tensors the size of their data,
// and a small multiple of the header's size for everything else.
//
// Throws c10::ValueError with the path if the file cannot be read or is not
// valid:
// - the header is longer than the file or than 100 MB,
// - the JSON is not a safetensors header, or has a name twice,
// - LibTorch lacks the dtype,
// - offsets have holes or overlaps, or do not match the shape.
//
// `wanted`: accepts the names of the tensors to read; null: all. The others are
// on the meta device, with their dtypes and shapes, and their bytes are not
// read: a process reads the weights of its own layers only.
//
// Thread-safe.
Safetensors read_safetensors(
    const std::string& path,
    const std::function<bool(const std::string& name)>& wanted = nullptr);

// Reads the same format from memory, which is not needed afterwards. `source`:
// the name used in errors. Thread-safe.
Safetensors parse_safetensors(const void* bytes, std::size_t size,
                              const std::string& source = "safetensors");

// Writes a file, which appears only when it is complete
// (models/weights/files.h).
//
// The header has the names in the order of the dict. The data is ordered by
// decreasing element size, so that each tensor is aligned to its elements.
// Tensors may be strided and on any device. The format cannot express shared
// memory: each tensor is written in full.
//
// Throws c10::ValueError with the tensor's name if a tensor is undefined,
// sparse, or on the meta device (without values), if the format lacks its dtype
// (complex128, ...), or if its name is not UTF-8 or is "__metadata__". Throws
// c10::ValueError if a text of `metadata` is not UTF-8 or the header would have
// more than 100 MB, and c10::Error if the file cannot be written.
// Threads: may be called from any thread while no other thread changes the
// tensors.
void write_safetensors(const std::string& path, const StateDict& tensors,
                       const SafetensorsMetadata& metadata = {});

// Returns the bytes that write_safetensors() would write. Throws
// c10::ValueError as it does.
std::string safetensors_bytes(const StateDict& tensors,
                              const SafetensorsMetadata& metadata = {});

}  // namespace gpipe
