#include "gpipe/program/working_directory.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace gpipe {

void enter_working_directory() {
  const char* const folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (!folder || chdir(folder) == 0) return;
  const std::string reason = std::strerror(errno);
  throw std::invalid_argument("BUILD_WORKING_DIRECTORY is '" +
                              std::string(folder) +
                              "', which cannot be entered: " + reason);
}

}  // namespace gpipe
