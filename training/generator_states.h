// The states of LibTorch's default random generators.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace gpipe {

// By device: "cpu", "cuda:0", ... Tensors of bytes on the CPU, whose length and
// meaning are LibTorch's.
using GeneratorStates = std::map<std::string, at::Tensor>;

// Of the CPU, and of every device of the accelerator if there is one with
// generators. Threads: any.
GeneratorStates generator_states();

// The generators go on from there. States of devices that are not here are left
// out. Errors: c10::Error if LibTorch does not take a state. Threads: any,
// while nobody draws.
void set_generator_states(const GeneratorStates& states);

}  // namespace gpipe
