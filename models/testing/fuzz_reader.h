// Checks the properties that every reader of weights must have on any input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "models/weights/state_dict.h"

namespace gpipe::testing {

// Runs fuzz_parser() of gpipe/testing/fuzz_check.h with `read`, which may throw
// only c10::ValueError. Reads the first and the last element of each tensor, so
// that ASan reports an access beyond the tensor's memory.
void fuzz_reader(std::size_t input_size,
                 const std::function<StateDict()>& read);

// Returns the path of a file in memory with these bytes, for readers that need
// a path. The next call replaces the bytes.
std::string fuzz_file(const uint8_t* data, std::size_t size);

}  // namespace gpipe::testing
