// How this folder reports what cannot be.
#pragma once

#include <sstream>
#include <stdexcept>

namespace gpipe {

// Throws std::invalid_argument with the parts as one text.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

}  // namespace gpipe
