#include "gpipe/testing/simulated/generator.h"

#include <ATen/core/Tensor.h>

#include <vector>

#include "gpipe/testing/simulated/current.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device) {
  device_ = c10::Device(kDeviceType, device);
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device_.index());
  copy->set_state(*get_state());
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* const generators = [] {
    auto* all = new std::vector<at::Generator>();
    for (c10::DeviceIndex k = 0; k < kDevices; ++k) {
      all->push_back(at::make_generator<GeneratorImpl>(k));
    }
    return all;
  }();
  return (*generators)[device < 0 ? current_device() : device];
}

at::Generator on_cpu(const at::Generator& generator) {
  at::Generator copy = at::make_generator<at::CPUGeneratorImpl>();
  copy.set_state(generator.get_state());
  return copy;
}

}  // namespace gpipe::simulated
