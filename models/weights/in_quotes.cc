#include "models/weights/in_quotes.h"

#include <cstddef>
#include <cstdint>

namespace gpipe::internal {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 100;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result = "'";
  for (const char each : text.substr(0, kLongest)) {
    const auto byte = static_cast<uint8_t>(each);
    // Bytes from 0x80 on stay: they may be UTF-8.
    if (byte < 0x20 || byte == 0x7f) {
      result += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      result += each;
    }
  }
  return result + (text.size() > kLongest ? "...'" : "'");
}

}  // namespace gpipe::internal
