// What has to be true of a reader of weights, whatever it is given.
#pragma once

#include <cstddef>
#include <functional>

#include "weights/state_dict.h"

namespace gpipe::testing {

// As fuzz_parser() of gpipe/testing/fuzz/check.h, for what throws
// c10::ValueError only. Looks at each tensor's first and last element, which
// must be in its memory (ASan tells).
void fuzz_reader(std::size_t input_size,
                 const std::function<StateDict()>& read);

}  // namespace gpipe::testing
