// Safetensors files whose checksums are kept outside of the file, and the
// error for damaged files.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/weights/state_dict.h"

namespace gpipe::internal {

// ---- Damage

// A file that is missing, incomplete or changed. Example of what():
// "model.safetensors has 1024 bytes, 2048 expected".
class Damage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// ---- Files

// A tensor in a file.
struct TensorRecord {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  uint32_t checksum = 0;  // CRC-32C of the contiguous bytes
};

// A file of tensors. It consists of the header, including the 8 bytes of its
// length, and of the tensors, without gaps. So the size and the checksums cover
// every byte.
struct TensorFileRecord {
  std::string name;  // without the folder
  uint64_t size = 0;
  uint64_t header_size = 0;
  uint32_t header_checksum = 0;
  std::vector<TensorRecord> tensors;
};

// Writes the new file `folder`/`name`. When this returns, the data is on the
// disk, but its name may not be (see training/files/file_operations.h). Tensors
// may be strided and on any device. Copies to the CPU, if needed, are made one
// at a time.
//
// Throws c10::ValueError, which names the tensor, if the format cannot store a
// tensor (see models/weights/safetensors.h). No file exists then. Throws
// c10::Error if the file cannot be written. Threads: may be called from any
// thread while no other thread changes the tensors.
TensorFileRecord write_tensor_file(const std::string& folder,
                                   const std::string& name,
                                   const StateDict& tensors);

// Returns the tensors for whose names `wanted` is true, on the CPU, in the
// order of the file.
//
// Throws Damage if the file does not exist, or
// if its size, its header or one of the returned tensors differs from `record`.
// Thread-safe.
StateDict read_tensor_file(
    const std::string& folder, const TensorFileRecord& record,
    const std::function<bool(const std::string&)>& wanted);

}  // namespace gpipe::internal
