// Files as bytes.
#pragma once

#include <string>

namespace gpipe::data {

// All bytes of a file, as they are. c10::ValueError, naming it: cannot be read,
// or is empty. Threads: any; calls do not share state.
std::string read_file(const std::string& path);

}  // namespace gpipe::data
