#include "gpipe/testing/simulated/contexts.h"

#include <atomic>

#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {
namespace {

std::atomic<bool> contexts[kDevices];

}  // namespace

void make_context(c10::DeviceIndex device) { contexts[device] = true; }

bool has_context(c10::DeviceIndex device) { return contexts[device]; }

std::vector<c10::DeviceIndex> devices_with_context() {
  std::vector<c10::DeviceIndex> devices;
  for (c10::DeviceIndex k = 0; k < kDevices; ++k) {
    if (has_context(k)) devices.push_back(k);
  }
  return devices;
}

void forget_contexts() {
  for (std::atomic<bool>& each : contexts) each = false;
}

}  // namespace gpipe::simulated
