// The name of a machine.
#pragma once

#include <string>

namespace gpipe {

// This machine's; "unknown" if it has none. No error. Threads: any.
std::string host_name();

}  // namespace gpipe
