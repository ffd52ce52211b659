#include "gpipe/base/devices.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <absl/strings/str_join.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string_view>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

using internal::refuse;

// Returns the accelerators of this machine.
std::vector<c10::Device> accelerators() {
  std::vector<c10::Device> devices;
  const auto type = at::accelerator::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  for (int k = 0; k < count; ++k) {
    devices.emplace_back(*type, static_cast<c10::DeviceIndex>(k));
  }
  return devices;
}

// Returns the device called `name`, an entry of `text`.
c10::Device parse_device(const std::string& text, const std::string& name,
                         const std::vector<c10::Device>& accelerators) {
  if (name == "cpu" || name == "cpu:0") return c10::Device(c10::kCPU);
  const bool is_index =
      !name.empty() && name.size() < 4 &&
      name.find_first_not_of("0123456789") == std::string::npos;
  if (is_index) {
    const auto index = static_cast<std::size_t>(std::stoi(name));
    if (index < accelerators.size()) return accelerators[index];
    refuse("--devices=", text, ": there is no accelerator ", index,
           "; this machine has ", accelerators.size());
  }
  std::vector<std::string> names{"cpu"};
  for (const c10::Device& each : accelerators) {
    names.push_back(each.str());
    if (name == each.str() || name + ":0" == each.str()) return each;
  }
  refuse("--devices=", text, ": this machine has no '", name, "'; it has ",
         absl::StrJoin(names, ", "));
}

}  // namespace

std::vector<c10::Device> parse_devices(const std::string& text) {
  const auto known = accelerators();
  std::vector<c10::Device> devices;
  for (const std::string& name : split_list(text)) {
    devices.push_back(parse_device(text, name, known));
  }
  return devices;
}

std::vector<c10::Device> all_devices() {
  auto devices = accelerators();
  if (devices.empty()) devices.emplace_back(c10::kCPU);
  return devices;
}

c10::Device first_device(const std::vector<c10::Device>& devices) {
  return devices.empty() ? all_devices().front() : devices.front();
}

std::vector<c10::Device> each_once(const std::vector<c10::Device>& devices) {
  std::vector<c10::Device> unique;
  for (const auto& device : devices) {
    if (std::find(unique.begin(), unique.end(), device) == unique.end()) {
      unique.push_back(device);
    }
  }
  return unique;
}

void synchronize(const std::vector<c10::Device>& devices) {
  for (const c10::Device& device : devices) {
    if (device.is_cpu()) continue;
    // Without this guard LibTorch makes a context on the thread's device.
    const c10::DeviceGuard on_device(device);
    at::accelerator::synchronizeDevice(device.index());
  }
}

void use_deterministic_kernels(bool strict) {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/!strict);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) return true;
  // The CPU's allocator throws a plain c10::Error.
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch && std::string_view(of_torch->what_without_backtrace())
                             .find("DefaultCPUAllocator: can't allocate") !=
                         std::string_view::npos;
}

}  // namespace gpipe
