// Checks the first bytes of a zip archive.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpipe::internal {

// Returns the first `bytes` bytes of a file; fewer if the file is smaller.
// Throws c10::ValueError, without the path, if the file is not a regular file,
// or cannot be read. Thread-safe.
std::string read_start(const std::string& path, std::size_t bytes);

// Checks that `start`, 4 or more bytes at the start of a file, are those of a
// zip archive. LibTorch's reader would only say that the file is no zip.
// `writer`: Python's function that writes such files, named in the error.
// Throws c10::ValueError, without the path. Thread-safe.
void check_zip_start(std::string_view start, std::string_view writer);

}  // namespace gpipe::internal
