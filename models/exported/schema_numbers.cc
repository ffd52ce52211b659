#include "models/exported/schema_numbers.h"

#include <c10/util/Exception.h>

namespace gpipe::exported {

c10::ScalarType dtype_of(int64_t number) {
  using enum c10::ScalarType;
  static constexpr c10::ScalarType kFrom1[] = {
      Byte,   Char,        Short,        Int,           Long, Half,    Float,
      Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, BFloat16};
  static constexpr c10::ScalarType kFrom28[] = {
      UInt16,          Float8_e4m3fn,  Float8_e5m2, Float8_e4m3fnuz,
      Float8_e5m2fnuz, Float8_e8m0fnu, UInt32,      UInt64};
  if (number >= 1 && number <= 13) return kFrom1[number - 1];
  TORCH_CHECK_VALUE(number >= 28 && number <= 35, "the dtype number ", number,
                    " is unknown; 1 to 13 and 28 to 35 are known");
  return kFrom28[number - 28];
}

c10::MemoryFormat memory_format_of(int64_t number) {
  using enum c10::MemoryFormat;
  static constexpr c10::MemoryFormat kFrom1[] = {Contiguous, ChannelsLast,
                                                 ChannelsLast3d, Preserve};
  TORCH_CHECK_VALUE(number >= 1 && number <= 4, "the memory format number ",
                    number, " is unknown; 1 to 4 are known");
  return kFrom1[number - 1];
}

void check_layout(int64_t number) {
  constexpr int64_t kStrided = 7;
  TORCH_CHECK_VALUE(number == kStrided, "the layout number ", number,
                    " is not supported; only strided tensors (", kStrided,
                    ") are");
}

}  // namespace gpipe::exported
