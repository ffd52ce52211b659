// The directory at the end of a zip archive.
#pragma once

#include <string>

namespace gpipe {

// Checks what the directory says of the sizes of records, before LibTorch's
// reader allocates as much as it says. torch.save does not compress, so a
// record that is larger than the file lies about its size, or wants to fill the
// memory; so do several that are larger together, since they have bytes in
// common. The format is PKWARE's APPNOTE.TXT, sections 4.3.12 to 4.3.16
// and 4.5.3.
//
// Errors: c10::ValueError, without the path, for such records, and for a
// directory that is missing, cut off or damaged. Threads: any.
void check_zip_directory(const std::string& path);

}  // namespace gpipe
