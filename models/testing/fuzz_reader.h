// Checks the properties that every reader of weights must have on any input.
#pragma once

#include <cstddef>
#include <functional>

#include "models/weights/state_dict.h"

namespace gpipe::testing {

// Runs fuzz_parser() of gpipe/testing/fuzz_check.h with `read`, which may throw
// only c10::ValueError. Reads the first and the last element of each tensor, so
// that ASan reports an access beyond the tensor's memory.
void fuzz_reader(std::size_t input_size,
                 const std::function<StateDict()>& read);

}  // namespace gpipe::testing
