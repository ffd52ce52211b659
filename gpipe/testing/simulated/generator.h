// Random number generators of the simulated accelerators.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace gpipe::simulated {

// The CPU's generator with the device of an accelerator. The same seed gives
// the same numbers as on the CPU. Using a generator of another device is an
// error.
class GeneratorImpl : public at::CPUGeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device);

 private:
  GeneratorImpl* clone_impl() const override;
};

// Returns the device's default generator, which lives as long as the process. A
// negative index stands for the current device.
const at::Generator& default_generator(c10::DeviceIndex device);

// Returns a CPU generator with the same state as `generator`. The state of
// `generator` does not change when numbers are drawn from the result; use
// set_state() for that.
at::Generator on_cpu(const at::Generator& generator);

}  // namespace gpipe::simulated
