// Random number generators of the simulated accelerators.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace gpipe::simulated {

// The CPU's generator, but an accelerator's by its device, so that the same
// seed gives the same numbers and mixing the two up is an error.
class GeneratorImpl : public at::CPUGeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device);

 private:
  GeneratorImpl* clone_impl() const override;
};

// One per device, for as long as the process lives.
const at::Generator& default_generator(c10::DeviceIndex device);

// A CPU generator that goes on where `generator` stands; advance `generator`
// by what is drawn from it with set_state().
at::Generator on_cpu(const at::Generator& generator);

}  // namespace gpipe::simulated
