// What the file formats call LibTorch's dtypes, and how many bytes shapes take.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpipe {

struct DtypeNames {
  at::ScalarType dtype;
  const char* python;       // "float32"
  const char* storage;      // in pickles: "FloatStorage"; null: has none
  const char* safetensors;  // "F32"; null: has none
};

// Null for a dtype, or a name, that is not in the table: what is quantized or
// has less than a byte per element is not. Threads: pure functions.
const DtypeNames* find_dtype(at::ScalarType dtype);
const DtypeNames* find_dtype_by_python_name(std::string_view name);
const DtypeNames* find_dtype_by_storage_name(std::string_view name);
const DtypeNames* find_dtype_by_safetensors_name(std::string_view name);

// The bytes of a contiguous tensor. Nothing for a negative size, more than 64
// dimensions, or sizes for which LibTorch would calculate beyond 63 bits; it
// does with the sizes other than 0, even if the tensor has no elements.
// Threads: pure function.
std::optional<int64_t> bytes_of(c10::ArrayRef<int64_t> sizes,
                                at::ScalarType dtype);

}  // namespace gpipe
