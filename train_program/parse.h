// Parsers for lists and names in flags.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::train_program {

// Returns the numbers of a list like "10,12,9". Throws c10::ValueError, which
// names the flag, if a part is not an integer.
std::vector<int64_t> parse_numbers(const std::string& flag,
                                   const std::string& text);

// Returns the devices of a list like "cuda:0,cuda:1,cpu" or "0,1", or none for
// "". Throws c10::ValueError if a part is not a device of this machine.
std::vector<c10::Device> parse_devices(const std::string& text);

// Returns the first of `devices`. If there are none, returns the first
// accelerator, or the CPU if the machine has no accelerator.
c10::Device first_device(const std::vector<c10::Device>& devices);

// Returns the mode for never, except_last or always. Throws c10::ValueError for
// any other name.
Checkpoint parse_checkpoint(const std::string& name);

}  // namespace gpipe::train_program
