#include "exported/schema_numbers.h"

#include <c10/util/Exception.h>

namespace gpipe::exported {

c10::ScalarType dtype_of(int64_t number) {
  switch (number) {
    case 1:
      return c10::ScalarType::Byte;
    case 2:
      return c10::ScalarType::Char;
    case 3:
      return c10::ScalarType::Short;
    case 4:
      return c10::ScalarType::Int;
    case 5:
      return c10::ScalarType::Long;
    case 6:
      return c10::ScalarType::Half;
    case 7:
      return c10::ScalarType::Float;
    case 8:
      return c10::ScalarType::Double;
    case 9:
      return c10::ScalarType::ComplexHalf;
    case 10:
      return c10::ScalarType::ComplexFloat;
    case 11:
      return c10::ScalarType::ComplexDouble;
    case 12:
      return c10::ScalarType::Bool;
    case 13:
      return c10::ScalarType::BFloat16;
    case 28:
      return c10::ScalarType::UInt16;
    case 29:
      return c10::ScalarType::Float8_e4m3fn;
    case 30:
      return c10::ScalarType::Float8_e5m2;
    case 31:
      return c10::ScalarType::Float8_e4m3fnuz;
    case 32:
      return c10::ScalarType::Float8_e5m2fnuz;
    case 33:
      return c10::ScalarType::Float8_e8m0fnu;
    case 34:
      return c10::ScalarType::UInt32;
    case 35:
      return c10::ScalarType::UInt64;
  }
  TORCH_CHECK_VALUE(false, "the dtype number ", number,
                    " is unknown; 1 to 13 and 28 to 35 are known");
}

c10::MemoryFormat memory_format_of(int64_t number) {
  switch (number) {
    case 1:
      return c10::MemoryFormat::Contiguous;
    case 2:
      return c10::MemoryFormat::ChannelsLast;
    case 3:
      return c10::MemoryFormat::ChannelsLast3d;
    case 4:
      return c10::MemoryFormat::Preserve;
  }
  TORCH_CHECK_VALUE(false, "the memory format number ", number,
                    " is unknown; 1 to 4 are known");
}

void check_layout(int64_t number) {
  constexpr int64_t kStrided = 7;
  TORCH_CHECK_VALUE(number == kStrided, "the layout number ", number,
                    " is not supported; only strided tensors (", kStrided,
                    ") are");
}

}  // namespace gpipe::exported
