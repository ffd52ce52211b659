// Writes pickles of state dicts, as torch.save does.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::internal {

// The description of a tensor for pickle_tensors().
struct PickledTensor {
  std::string name;
  std::string key;  // key of its storage
  int64_t storage_bytes;
  c10::ScalarType dtype;  // must be in the table of models/weights/dtypes.h
  int64_t offset;         // in elements
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// Returns the pickle (protocol 2) of an OrderedDict of `tensors`, as torch.save
// writes it. The tensors are on the CPU and do not require a gradient. Throws
// c10::ValueError if a dtype is not in the table of models/weights/dtypes.h, or
// if a name has 4 GiB or more. Thread-safe.
std::string pickle_tensors(const std::vector<PickledTensor>& tensors);

}  // namespace gpipe::internal
