// The network connections of this process.
#pragma once

#include <cstdint>

namespace gpipe {

// Returns the number of sockets of this process that are connected with
// another socket over IP. A connection of the process with itself counts twice.
int64_t count_connections();

}  // namespace gpipe
