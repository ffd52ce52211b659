// The states of LibTorch's default random generators.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace gpipe {

// States by device: "cpu", "cuda:0", ... A state is a byte tensor on the CPU.
// LibTorch defines its length and its meaning.
using GeneratorStates = std::map<std::string, at::Tensor>;

// Returns the states of the CPU's default generator and, if the accelerator has
// generators, of that of each of its devices. Thread-safe.
GeneratorStates generator_states();

// Sets the default generators to `states`. Ignores states of devices that this
// machine does not have. Throws c10::Error if LibTorch rejects a state.
// Threads: may be called from any thread while no thread draws random numbers.
void set_generator_states(const GeneratorStates& states);

}  // namespace gpipe
