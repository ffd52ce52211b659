// The name of this machine.
#pragma once

#include <string>

namespace gpipe {

// Returns the host name, or "unknown" if it cannot be read. Thread-safe.
std::string host_name();

}  // namespace gpipe
