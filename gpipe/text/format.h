// Formatting of numbers in texts.
#pragma once

#include <string>

namespace gpipe {

// Returns the text that printf() would print for the same arguments.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace gpipe
