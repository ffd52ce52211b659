#include "benchmarks/harness/devices.h"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "gpipe/base/devices.h"
#include "gpipe/base/instruments.h"

namespace gpipe::benchmarks {

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

void release_memory() {
  if (at::accelerator::deviceCount() > 0) at::accelerator::emptyCache();
}

namespace {

int64_t bytes_on(const c10::Device& device,
                 const std::vector<at::Tensor>& tensors, bool trained_only) {
  int64_t bytes = 0;
  std::unordered_set<const void*> seen;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.device() != device) continue;
    if (trained_only && !tensor.requires_grad()) continue;
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

}  // namespace

DeviceMemory lasting_on(const c10::Device& device,
                        const LastingTensors& lasting) {
  DeviceMemory memory;
  memory.parameters = bytes_on(device, lasting.parameters, false);
  memory.gradients = bytes_on(device, lasting.parameters, true);
  memory.optimizer_state = bytes_on(device, lasting.optimizer_state, false);
  memory.buffers = bytes_on(device, lasting.buffers, false);
  return memory;
}

MemoryWatch::MemoryWatch(const std::vector<c10::Device>& devices)
    : devices_(each_once(devices)) {
  for (const auto& device : devices_) {
    if (device.is_cpu()) {
      static std::once_flag installed;
      std::call_once(installed, instruments::CountingAllocator::install);
    }
    base_.push_back(instruments::live_bytes(device));
  }
  reset_peaks();
}

void MemoryWatch::reset_peaks() const {
  // Cached memory of an earlier model, or of the times of layers, would count
  // as reserved.
  release_memory();
  synchronize(devices_);
  for (const auto& device : devices_) instruments::reset_peak_bytes(device);
}

std::vector<DeviceMemory> MemoryWatch::read(
    const LastingTensors& lasting) const {
  synchronize(devices_);
  std::vector<DeviceMemory> memory;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const auto& device = devices_[i];
    DeviceMemory& of_device = memory.emplace_back(lasting_on(device, lasting));
    of_device.peak = instruments::peak_bytes(device) - base_[i];
    of_device.reserved = instruments::peak_reserved_bytes(device);
  }
  return memory;
}

std::string devices_text(const std::vector<c10::Device>& devices) {
  std::string text;
  for (const auto& device : each_once(devices)) {
    const auto partitions = std::count(devices.begin(), devices.end(), device);
    if (!text.empty()) text += ", ";
    text += device.str();
    if (partitions > 1) text += " x " + std::to_string(partitions);
  }
  return text;
}

void set_devices(const std::vector<c10::Device>& devices,
                 std::vector<Outcome>* rows) {
  for (Outcome& row : *rows) {
    try {
      row.devices = devices_text(devices_for(
          std::max<int64_t>(1, row.experiment.partitions), devices));
    } catch (const MissingDevices& missing) {
      row.error = missing.what();
      row.left_out = true;
    }
  }
}

}  // namespace gpipe::benchmarks
