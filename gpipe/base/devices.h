// Devices, kernels and errors of programs with LibTorch.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe {

// Parses a list of devices: "0,1" (accelerators), "cuda:0,cuda:1" or "cpu".
// Returns none for "". A device may be listed several times: partitions then
// share it.
//
// Throws std::invalid_argument, naming --devices, if an entry is not a device
// of this machine.
std::vector<c10::Device> parse_devices(const std::string& text);

// Returns the first of `devices`. If there are none, returns the first
// accelerator, or the CPU if the machine has no accelerator.
c10::Device first_device(const std::vector<c10::Device>& devices);

// Returns every accelerator of the machine or, if there is none, the CPU.
std::vector<c10::Device> all_devices();

// Returns each of `devices` once, in the order in which they are first listed.
std::vector<c10::Device> each_once(const std::vector<c10::Device>& devices);

// Blocks until the accelerators among `devices` have finished all their work.
void synchronize(const std::vector<c10::Device>& devices);

// Makes LibTorch use deterministic kernels for the rest of the process. An
// operator without one throws if `strict`, else LibTorch warns once. Call it
// before cuBLAS is used, since cuBLAS then reads an environment variable that
// this function sets if it is unset. Threads: only while no other thread uses
// LibTorch.
void use_deterministic_kernels(bool strict = true);

// Returns whether the memory of the host or of a device did not suffice.
bool is_out_of_memory(const std::exception& error);

// Returns the result of `parse`. If it throws std::invalid_argument, throws
// c10::ValueError with the same text.
template <typename Parse>
auto with_value_error(const Parse& parse) {
  try {
    return parse();
  } catch (const std::invalid_argument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

}  // namespace gpipe
