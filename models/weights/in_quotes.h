// Quotes texts from files for error messages.
#pragma once

#include <string>
#include <string_view>

namespace gpipe::internal {

// Returns `text` in single quotes, cut after 100 bytes. Control characters are
// shown as "\x1b". Thread-safe.
std::string in_quotes(std::string_view text);

}  // namespace gpipe::internal
