// States of a run, compared.
#pragma once

#include "training/run_state.h"
#include "weights/state_dict.h"

namespace gpipe::testing {

// That everything in both is the same, to the bit.
void expect_equal(const StateDict& a, const StateDict& b);
void expect_equal(const RunState& a, const RunState& b);

}  // namespace gpipe::testing
