// A comparison of run states for tests.
#pragma once

#include "training/run_state.h"
#include "weights/state_dict.h"

namespace gpipe::testing {

// Expect that `a` and `b` are equal, bit by bit.
void expect_equal(const StateDict& a, const StateDict& b);
void expect_equal(const RunState& a, const RunState& b);

}  // namespace gpipe::testing
