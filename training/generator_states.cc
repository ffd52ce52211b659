#include "training/generator_states.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <vector>

namespace gpipe {
namespace {

struct Default {
  std::string device;
  at::Generator generator;
};

std::vector<Default> default_generators() {
  at::Context& context = at::globalContext();
  std::vector<Default> result;
  result.push_back({"cpu", context.defaultGenerator(at::kCPU)});
  const auto type = at::getAccelerator(/*checked=*/false);
  if (!type) return result;
  const auto count = at::accelerator::deviceCount();
  for (c10::DeviceIndex index = 0; index < count; ++index) {
    const c10::Device device(*type, index);
    try {
      result.push_back({device.str(), context.defaultGenerator(device)});
    } catch (const c10::Error&) {
      break;  // the accelerator has no generators
    }
  }
  return result;
}

}  // namespace

GeneratorStates generator_states() {
  GeneratorStates states;
  for (Default& each : default_generators()) {
    std::lock_guard<std::mutex> lock(each.generator.mutex());
    states[each.device] = each.generator.get_state();
  }
  return states;
}

void set_generator_states(const GeneratorStates& states) {
  for (Default& each : default_generators()) {
    const auto found = states.find(each.device);
    if (found == states.end()) continue;
    std::lock_guard<std::mutex> lock(each.generator.mutex());
    each.generator.set_state(found->second);
  }
}

}  // namespace gpipe
