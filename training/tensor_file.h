// Tensors in a safetensors file, with checksums kept elsewhere.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weights/state_dict.h"

namespace gpipe {

struct TensorRecord {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  uint32_t checksum = 0;  // of its bytes, contiguous
};

// A file's header, with the length before it, and its tensors follow each other
// without a gap: so all of the file is in the size or in one of the checksums.
struct TensorFileRecord {
  std::string name;  // without the folder
  uint64_t size = 0;
  uint64_t header_size = 0;
  uint32_t header_checksum = 0;
  std::vector<TensorRecord> tensors;
};

// Writes `folder`/`name`, a new file, which is on the disk afterwards; its name
// need not be (training/file_operations.h). Tensors may be strided and on any
// device. One at a time is copied to the CPU, if it has to be.
//
// Errors: c10::ValueError, naming the tensor, for what the format cannot take
// (see weights/safetensors.h), before there is a file; c10::Error if the file
// cannot be written.
// Threads: any, while no other one changes the tensors.
TensorFileRecord write_tensor_file(const std::string& folder,
                                   const std::string& name,
                                   const StateDict& tensors);

// The tensors whose names are `wanted`, on the CPU, in the order of the file.
//
// Errors: Damage (training/damage.h) if there is no such file, or if its size,
// header or one of these tensors is not as recorded. Threads: any.
StateDict read_tensor_file(
    const std::string& folder, const TensorFileRecord& record,
    const std::function<bool(const std::string&)>& wanted);

}  // namespace gpipe
