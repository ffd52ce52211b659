// The function by which code without LibTorch reports invalid arguments.
#pragma once

#include <sstream>
#include <stdexcept>

namespace gpipe::internal {

// Throws std::invalid_argument with all `parts` as one text.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

}  // namespace gpipe::internal
