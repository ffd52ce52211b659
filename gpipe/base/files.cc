#include "gpipe/base/files.h"

#include <c10/util/Exception.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace gpipe::internal {

std::string read_file(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  TORCH_CHECK_VALUE(file && bytes << file.rdbuf(), path,
                    ": cannot be read, or is empty");
  return std::move(bytes).str();
}

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes << std::flush;
  TORCH_CHECK_VALUE(file, path, ": cannot be written");
}

}  // namespace gpipe::internal
