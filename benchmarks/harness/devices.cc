#include "benchmarks/harness/devices.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "benchmarks/harness/parse.h"

namespace gpipe::benchmarks {
namespace {

c10::Device accelerator(int64_t index) {
  const auto type = at::accelerator::getAccelerator();
  const int count = at::accelerator::deviceCount();
  if (!type || index >= count) {
    throw std::invalid_argument("--devices: there is no accelerator " +
                                std::to_string(index) + "; this machine has " +
                                std::to_string(count));
  }
  return {*type, static_cast<c10::DeviceIndex>(index)};
}

c10::Device parse_device(const std::string& text) {
  const bool is_index =
      !text.empty() && text.size() < 4 &&
      text.find_first_not_of("0123456789") == std::string::npos;
  if (is_index) return accelerator(std::stoi(text));
  try {
    const c10::Device device(text);
    if (device.is_cpu()) return c10::Device(c10::kCPU);
    if (at::accelerator::isAccelerator(device.type())) {
      const c10::Device found = accelerator(std::max<int>(device.index(), 0));
      if (found.type() == device.type()) return found;
    }
  } catch (const c10::Error&) {
    // `text` is not the name of a device: reported below.
  }
  throw std::invalid_argument("--devices: '" + text +
                              "' is not a device of this machine; expected "
                              "numbers of accelerators (0,1), or cpu");
}

}  // namespace

std::vector<c10::Device> parse_devices(const std::string& text) {
  std::vector<c10::Device> devices;
  for (const auto& entry : split_list(text)) {
    devices.push_back(parse_device(entry));
  }
  if (!devices.empty()) return devices;
  for (int i = 0; i < at::accelerator::deviceCount(); ++i) {
    devices.push_back(accelerator(i));
  }
  if (devices.empty()) devices.emplace_back(c10::kCPU);
  return devices;
}

std::vector<c10::Device> devices_for(int64_t partitions,
                                     const std::vector<c10::Device>& devices) {
  if (devices.size() == 1 && devices[0].is_cpu()) {
    return {static_cast<size_t>(partitions), devices[0]};
  }
  const auto available = static_cast<int64_t>(devices.size());
  if (available < partitions) {
    throw MissingDevices("left out: needs " + std::to_string(partitions) +
                         " devices, there are " + std::to_string(available) +
                         "; to share a device among partitions, list it "
                         "several times (--devices=0,0)");
  }
  return {devices.begin(), devices.begin() + partitions};
}

void synchronize(const std::vector<c10::Device>& devices) {
  for (const auto& device : devices) {
    if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
  }
}

void release_memory() {
  if (at::accelerator::deviceCount() > 0) at::accelerator::emptyCache();
}

}  // namespace gpipe::benchmarks
