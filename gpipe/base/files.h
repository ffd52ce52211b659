// Reads and writes whole files.
#pragma once

#include <string>
#include <string_view>

namespace gpipe::internal {

// Returns all bytes of a file. Throws c10::ValueError with the path if the file
// cannot be read or is empty. Thread-safe.
std::string read_file(const std::string& path);

// Replaces the content of a file by `bytes`. Throws c10::ValueError with the
// path if the file cannot be written; it may have a part of them then.
// Thread-safe for different files.
void write_file(const std::string& path, std::string_view bytes);

}  // namespace gpipe::internal
