#include "gpipe/program/operators.h"

#include <dlfcn.h>

#include <filesystem>

#include "gpipe/base/text/lists.h"
#include "gpipe/base/text/refuse.h"

namespace gpipe {

void load_operators(const std::string& paths) {
  for (const std::string& path : split_list(paths)) {
    // dlopen() searches other folders for a name without a folder.
    const std::string file = std::filesystem::absolute(path);
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) continue;
    internal::refuse("--operators=", path, ": ", dlerror());
  }
}

}  // namespace gpipe
