// Writes bytes and file names to the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpipe::internal {

// Returns the folder of `path`: "." for a bare name, "/" for a file in the
// root. Thread-safe.
std::string folder_of(const std::string& path);

// Writes all bytes, in several parts if necessary, and adds the number of
// written bytes to `written`. Returns 0, or the system's error number.
// Thread-safe.
int write_all(int descriptor, const void* bytes, std::size_t size,
              uint64_t& written);

// The result of sync_names().
struct FolderSync {
  enum class Result { kSynced, kNotOpened, kNotSynced };
  Result result = Result::kSynced;
  int error = 0;  // errno of the failed call
};

// Writes the names in a folder to the disk (fsync of the folder). Returns
// kSynced if the folder may be written but not listed, or if the file system
// does not support the call: no sync is possible or necessary then.
// Thread-safe.
FolderSync sync_names(const std::string& folder);

}  // namespace gpipe::internal
