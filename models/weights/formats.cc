#include "models/weights/formats.h"

#include <algorithm>

#include "gpipe/base/json.h"
#include "gpipe/base/text.h"

namespace gpipe::internal {

namespace {

constexpr DtypeNames kDtypes[] = {
    {at::kFloat, "float32", "FloatStorage", "F32"},
    {at::kDouble, "float64", "DoubleStorage", "F64"},
    {at::kHalf, "float16", "HalfStorage", "F16"},
    {at::kBFloat16, "bfloat16", "BFloat16Storage", "BF16"},
    {at::kLong, "int64", "LongStorage", "I64"},
    {at::kInt, "int32", "IntStorage", "I32"},
    {at::kShort, "int16", "ShortStorage", "I16"},
    {at::kChar, "int8", "CharStorage", "I8"},
    {at::kByte, "uint8", "ByteStorage", "U8"},
    {at::kBool, "bool", "BoolStorage", "BOOL"},
    {at::kComplexFloat, "complex64", "ComplexFloatStorage", "C64"},
    {at::kComplexDouble, "complex128", "ComplexDoubleStorage", nullptr},
    // PyTorch has no storage classes for the dtypes that it added later.
    {at::kComplexHalf, "complex32", nullptr, nullptr},
    {at::kUInt16, "uint16", nullptr, "U16"},
    {at::kUInt32, "uint32", nullptr, "U32"},
    {at::kUInt64, "uint64", nullptr, "U64"},
    {at::kFloat8_e4m3fn, "float8_e4m3fn", nullptr, "F8_E4M3"},
    {at::kFloat8_e4m3fnuz, "float8_e4m3fnuz", nullptr, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2, "float8_e5m2", nullptr, "F8_E5M2"},
    {at::kFloat8_e5m2fnuz, "float8_e5m2fnuz", nullptr, "F8_E5M2FNUZ"},
    {at::kFloat8_e8m0fnu, "float8_e8m0fnu", nullptr, "F8_E8M0"},
    {at::kFloat4_e2m1fn_x2, "float4_e2m1fn_x2", nullptr, "F4", 2},
};

}  // namespace

const DtypeNames* find_dtype(at::ScalarType dtype) {
  for (const DtypeNames& each : kDtypes) {
    if (each.dtype == dtype) return &each;
  }
  return nullptr;
}

const DtypeNames* find_dtype(const char* DtypeNames::*kind,
                             std::string_view name) {
  for (const DtypeNames& each : kDtypes) {
    if (each.*kind && each.*kind == name) return &each;
  }
  return nullptr;
}

std::optional<int64_t> bytes_of(c10::ArrayRef<int64_t> sizes,
                                at::ScalarType dtype) {
  if (sizes.size() > kMaxDimensions) return std::nullopt;
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    empty |= size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

std::optional<int64_t> extent_of(int64_t offset, c10::ArrayRef<int64_t> sizes,
                                 c10::ArrayRef<int64_t> strides) {
  int64_t end = offset;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] == 0) return offset;
    int64_t step = 0;
    if (__builtin_mul_overflow(sizes[k] - 1, strides[k], &step) ||
        __builtin_add_overflow(end, step, &end)) {
      return std::nullopt;
    }
  }
  if (__builtin_add_overflow(end, 1, &end)) return std::nullopt;
  return end;
}

void check_can_be_written(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), in_quotes(name), " is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && !tensor.is_quantized() &&
                        !tensor._is_zerotensor() &&
                        find_dtype(tensor.scalar_type()),
                    in_quotes(name), " is a ", tensor.toString(),
                    "; only plain tensors can be written");
  TORCH_CHECK_VALUE(!tensor.is_meta(), in_quotes(name),
                    " is on the meta device, and so has no values");
}

void check_utf8(const std::string& text, const char* format) {
  try {
    static_cast<void>(Json(text).dump());
  } catch (const Json::exception&) {
    TORCH_CHECK_VALUE(false, in_quotes(text), " is not UTF-8, which ", format,
                      " requires");
  }
}

}  // namespace gpipe::internal
