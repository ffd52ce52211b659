// Throws std::invalid_argument with a text made of several parts. Internal to
// balancing.
#pragma once

#include <sstream>
#include <stdexcept>

namespace gpipe::balancing::detail {

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

}  // namespace gpipe::balancing::detail
