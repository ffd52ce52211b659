// A part of a whole, as people read it.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace gpipe {

// 0.125 is "12.5 %".
inline std::string percent_text(double part) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * part);
  return text.data();
}

}  // namespace gpipe
