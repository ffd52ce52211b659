// Checks the directory at the end of a zip archive.
#pragma once

#include <string>

namespace gpipe::internal {

// Checks the sizes of records in the directory, before LibTorch's reader
// allocates memory of these sizes. torch.save does not compress. So a record
// that is larger than the file has a wrong size, or would expand to fill the
// memory. The same holds if all records together are larger than the file,
// because some of them then share bytes. The format is PKWARE's APPNOTE.TXT,
// sections 4.3.12 to 4.3.16 and 4.5.3.
//
// Throws c10::ValueError, without the path, if there are such records, or if
// the directory is missing, cut off or damaged. Thread-safe.
void check_zip_directory(const std::string& path);

}  // namespace gpipe::internal
