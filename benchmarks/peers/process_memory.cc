#include "benchmarks/peers/process_memory.h"

#include <malloc.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

// TCMalloc's malloc_trim(), if the program has it.
extern "C" [[gnu::weak]] void MallocExtension_ReleaseFreeMemory();

namespace gpipe::benchmarks {
namespace {

// Returns a field of /proc/self/status in MiB. Its lines are "VmRSS:     1234
// kB".
double status_mib(const std::string& field) {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    double kib = 0;
    if (words >> name >> kib && name == field + ":") return kib / 1024;
  }
  throw std::runtime_error("no " + field +
                           " in /proc/self/status: memory is measured on Linux "
                           "only");
}

}  // namespace

ProcessMemory::ProcessMemory() {
  ::malloc_trim(0);
  if (MallocExtension_ReleaseFreeMemory) MallocExtension_ReleaseFreeMemory();
  // 5 resets the peak (VmHWM), see proc(5).
  std::ofstream("/proc/self/clear_refs") << 5;
  start_mib_ = status_mib("VmRSS");
}

double ProcessMemory::peak_mib() const {
  return status_mib("VmHWM") - start_mib_;
}

}  // namespace gpipe::benchmarks
