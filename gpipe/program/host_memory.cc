#include "gpipe/program/host_memory.h"

#include <malloc.h>

#include <cstdlib>
#include <limits>
#include <string>

namespace gpipe {
namespace {

bool is_set(const char* name, const char* part) {
  const char* const value = std::getenv(name);
  return value && std::string(value).find(part) != std::string::npos;
}

}  // namespace

bool keep_freed_memory() {
  if (is_set("MALLOC_TRIM_THRESHOLD_", "") ||
      is_set("MALLOC_MMAP_THRESHOLD_", "") ||
      is_set("GLIBC_TUNABLES", "glibc.malloc.")) {
    return false;
  }
  // Larger blocks are mapped, and given back when they are freed. 32 MiB is the
  // largest value that glibc takes, and the one to which the threshold grows by
  // itself. A program that sets one threshold ends this growth, so both are
  // set.
  constexpr int kMapFrom = 32 << 20;
  return ::mallopt(M_MMAP_THRESHOLD, kMapFrom) == 1 &&
         ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max()) == 1;
}

}  // namespace gpipe
