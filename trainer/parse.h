// Lists and names in flags.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::trainer {

// "10,12,9". c10::ValueError, naming the flag, for what are no whole numbers.
std::vector<int64_t> parse_numbers(const std::string& flag,
                                   const std::string& text);

// "10,12,9".
std::string text_of(const std::vector<int64_t>& numbers);

// "cuda:0,cuda:1,cpu"; nothing in "". c10::ValueError for what is no device, or
// is not there.
std::vector<c10::Device> parse_devices(const std::string& text);

// The first of them; if there are none, the first accelerator, or the CPU on a
// machine without any.
c10::Device first_device(const std::vector<c10::Device>& devices);

// never, except_last, always. c10::ValueError.
Checkpoint parse_checkpoint(const std::string& name);

// The parts between commas; none in "".
std::vector<std::string> split(const std::string& text);

}  // namespace gpipe::trainer
