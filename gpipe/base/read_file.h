// Reads files as bytes.
#pragma once

#include <string>

namespace gpipe::internal {

// Returns all bytes of a file. Throws c10::ValueError with the path if the file
// cannot be read or is empty. Thread-safe.
std::string read_file(const std::string& path);

}  // namespace gpipe::internal
