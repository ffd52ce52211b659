// What readers and writers of all file formats share: the names of LibTorch's
// dtypes, the size of tensors in bytes, and the prefixes of errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gpipe/base/devices.h"

namespace gpipe::internal {

// The names of one dtype. A null name means that the format has no such dtype.
struct DtypeNames {
  at::ScalarType dtype;
  const char* python;       // "float32"
  const char* storage;      // in pickles: "FloatStorage"; may be null
  const char* safetensors;  // "F32"; may be null
  // The numbers in one element. safetensors counts each of them in the last
  // size of a shape; LibTorch counts the elements.
  int64_t packed = 1;
};

// Returns the table entry of a dtype, or null if the table does not contain it.
// Quantized dtypes and those with less than a byte per element of LibTorch are
// not in the table. Thread-safe.
const DtypeNames* find_dtype(at::ScalarType dtype);
// Does the same for a name. `kind`: which name, such as &DtypeNames::python.
const DtypeNames* find_dtype(const char* DtypeNames::*kind,
                             std::string_view name);

// The limit of LibTorch's operators.
constexpr std::size_t kMaxDimensions = 64;

// Returns the size of a contiguous tensor in bytes. Returns nothing for a
// negative size, for more than kMaxDimensions, or if LibTorch's own calculation
// would overflow 63 bits. LibTorch multiplies the sizes other than 0, even if
// the tensor has no elements. Thread-safe.
std::optional<int64_t> bytes_of(c10::ArrayRef<int64_t> sizes,
                                at::ScalarType dtype);

// Returns the number of elements from the start of a storage to the last
// element of a tensor; `offset` for a tensor without elements. Returns nothing
// if the number would overflow 63 bits. No argument is negative. Thread-safe.
std::optional<int64_t> extent_of(int64_t offset, c10::ArrayRef<int64_t> sizes,
                                 c10::ArrayRef<int64_t> strides);

// Throws c10::ValueError with the name unless the tensor has values that a file
// can hold: defined, strided, of a dtype in the table, and not on the meta
// device. Thread-safe.
void check_can_be_written(const std::string& name, const at::Tensor& tensor);

// Throws c10::ValueError with the text if it is not UTF-8. `format`: what
// requires it. Thread-safe.
void check_utf8(const std::string& text, const char* format);

// Returns what `body` returns. If `body` throws an `Error`, throws a
// c10::ValueError with `prefix` and its text. An error of lack of memory passes
// unchanged, since the file is not its cause.
template <typename Error = c10::ValueError, typename Body>
auto with_prefix(const std::string& prefix, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (is_out_of_memory(error)) throw;
    C10_THROW_ERROR(ValueError, prefix + error.what_without_backtrace());
  }
}

}  // namespace gpipe::internal
