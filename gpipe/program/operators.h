// Operators that are not LibTorch's own.
#pragma once

#include <string>

namespace gpipe {

// Loads shared libraries, which register operators with LibTorch as they are
// loaded. `paths`: separated by commas; "" for none. The libraries stay loaded.
// They are code that runs in this process: load only those that you trust.
//
// Throws std::invalid_argument with --operators, the path and the system's
// reason if a library cannot be loaded.
void load_operators(const std::string& paths);

}  // namespace gpipe
