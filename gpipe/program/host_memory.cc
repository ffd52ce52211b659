#include "gpipe/program/host_memory.h"

#include <cstdlib>
#include <cstring>
#include <limits>

namespace gpipe {
namespace {

constexpr char kTrim[] = "MALLOC_TRIM_THRESHOLD_";
constexpr char kMap[] = "MALLOC_MMAP_THRESHOLD_";

// Larger blocks are mapped, and given back when they are freed. 32 MiB is the
// largest value that glibc takes, and the one to which the threshold grows by
// itself. A program that sets one threshold ends this growth, so both are set.
constexpr int kMapFrom = 32 << 20;
constexpr int kTrimFrom = std::numeric_limits<int>::max();

}  // namespace

std::vector<std::pair<std::string, std::string>> keep_freed_memory_variables() {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  if (std::getenv(kTrim) || std::getenv(kMap) ||
      (tunables && std::strstr(tunables, "glibc.malloc."))) {
    return {};
  }
  return {{kMap, std::to_string(kMapFrom)}, {kTrim, std::to_string(kTrimFrom)}};
}

}  // namespace gpipe
