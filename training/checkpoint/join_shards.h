// Joins the state of an optimizer that is spread over replicas.
#pragma once

#include "training/optimizer_state.h"

namespace gpipe::internal {

// Replaces the states of rows by states of whole parameters. Throws Damage
// (training/checkpoint/damage.h) if rows are missing or do not fit together.
void join_shards(OptimizerState& state);

}  // namespace gpipe::internal
