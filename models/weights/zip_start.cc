#include "models/weights/zip_start.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <fstream>
#include <ios>

namespace gpipe::internal {

std::string read_start(const std::string& path, std::size_t bytes) {
  struct stat status;
  TORCH_CHECK_VALUE(stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode),
                    "is not a regular file, or cannot be read");
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file, "cannot be read");
  std::string start(bytes, '\0');
  file.read(start.data(), static_cast<std::streamsize>(bytes));
  start.resize(static_cast<std::size_t>(file.gcount()));
  return start;
}

void check_zip_start(std::string_view start, std::string_view writer) {
  TORCH_CHECK_VALUE(start.starts_with("PK\x03\x04"),
                    "is not a zip archive: it is damaged, or ", writer,
                    " did not write it");
}

}  // namespace gpipe::internal
