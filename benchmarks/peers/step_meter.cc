#include "benchmarks/peers/step_meter.h"

#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "gpipe/base/devices.h"
#include "gpipe/base/instruments.h"

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
  std::ofstream reset("/proc/self/clear_refs");
  reset << 5 << std::flush;
  if (!reset) {
    throw std::runtime_error(
        "/proc/self/clear_refs cannot be written, so the peak of a step would "
        "be that of the process");
  }
  start_mib_ = status_mib("VmRSS");
}

double ProcessMemory::peak_mib() const {
  return status_mib("VmHWM") - start_mib_;
}

namespace {

constexpr double kMib = 1 << 20;

double cpu_now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

StepWatch::StepWatch(const std::vector<c10::Device>& devices)
    : devices_(each_once(devices)) {
  synchronize(devices_);
  for (const auto& device : devices_) {
    starts_.push_back(internal::Stamp::now(device));
  }
  cpu_ = cpu_now();
}

Duration StepWatch::elapsed() const {
  std::vector<internal::Stamp> ends;
  for (const auto& device : devices_) {
    ends.push_back(internal::Stamp::now(device));
  }
  double slowest = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    slowest = std::max(slowest, ends[i].seconds_since(starts_[i]));
  }
  return {slowest, cpu_now() - cpu_};
}

PeakMemory::PeakMemory(const std::vector<c10::Device>& devices) {
  for (const auto& device : each_once(devices)) {
    if (!device.is_cpu()) accelerators_.push_back(device);
  }
  if (accelerators_.empty()) process_.emplace();
  synchronize(accelerators_);
  for (const auto& device : accelerators_) {
    instruments::reset_peak_bytes(device);
  }
}

std::vector<double> PeakMemory::peaks_mib() const {
  if (process_) return {process_->peak_mib()};
  double allocated = 0, reserved = 0;
  for (const auto& device : accelerators_) {
    allocated += static_cast<double>(instruments::peak_bytes(device)) / kMib;
    reserved +=
        static_cast<double>(*instruments::peak_reserved_bytes(device)) / kMib;
  }
  return {allocated, reserved};
}

}  // namespace gpipe::benchmarks
