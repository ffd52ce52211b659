// Texts from files in messages.
#pragma once

#include <string>
#include <string_view>

namespace gpipe {

// `text` in quotes: cut after 100 bytes, unprintable ones as \x1b. Threads:
// pure function.
std::string in_quotes(std::string_view text);

}  // namespace gpipe
