// Reads and checks the directory at the end of a zip archive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::internal {

// A record, as the directory describes it.
struct ZipRecord {
  std::string name;  // without the folder, which all records share
  uint64_t size = 0;
  uint32_t crc32 = 0;
};

// Returns the records in the order of the directory. Checks their sizes, before
// LibTorch's reader allocates memory of these sizes. torch.save does not
// compress. So a record that is larger than the file has a wrong size, or would
// expand to fill the memory. The same holds if all records together are larger
// than the file, because some of them then share bytes. The format is PKWARE's
// APPNOTE.TXT, sections 4.3.12 to 4.3.16 and 4.5.3.
//
// Throws c10::ValueError, without the path, if there are such records, or if
// the directory is missing, cut off or damaged. Thread-safe.
std::vector<ZipRecord> read_zip_directory(const std::string& path);

}  // namespace gpipe::internal
