// What it takes for bytes and names to be on a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpipe {

// The folder that a path is in: "." for a bare name, "/" for what is in the
// root.
std::string folder_of(const std::string& path);

// Writes all of the bytes, in as many parts as it takes, and adds what has been
// written to `written`. 0, or the system's error. Threads: any.
int write_all(int descriptor, const void* bytes, std::size_t size,
              uint64_t& written);

struct FolderSync {
  enum class Result { kSynced, kNotOpened, kNotSynced };
  Result result = Result::kSynced;
  int error = 0;  // the system's
};

// Has the names in a folder written to the disk. A folder that one may write
// into, but not list, and a file system that cannot do it, and need not, are no
// errors. Threads: any.
FolderSync sync_names(const std::string& folder);

}  // namespace gpipe
