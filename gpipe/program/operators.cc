#include "gpipe/program/operators.h"

#include <dlfcn.h>

#include <filesystem>
#include <sstream>

#include "gpipe/text/refuse.h"

namespace gpipe {

void load_operators(const std::string& paths) {
  std::istringstream list(paths);
  for (std::string path; std::getline(list, path, ',');) {
    // dlopen() searches other folders for a name without a folder.
    const std::string file = std::filesystem::absolute(path);
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) continue;
    internal::refuse("--operators=", path, ": ", dlerror());
  }
}

}  // namespace gpipe
