// How many bytes each rank holds, over time.
#pragma once

#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// `timeline`, a measured one perhaps, with the memory and the peak of each rank
// by the bytes of `costs`; as it is if all of these lists are empty.
//
// Activations are held from the start of F (of R in a recomputed cell, whose F
// keeps the input) to the end of B or W; I leaves weight_activation_bytes. A
// cell without a backward is held to the end, one without a forward from the
// beginning, since what is not in the schedule counts as done. At one time,
// what ends frees before what starts takes.
//
// Errors: std::invalid_argument for costs that cannot be, and for a list that
// is neither empty nor has the stage.
// Complexity: O(n), O(n log n) if spans of a rank overlap. Threads: pure
// function.
Timeline with_memory(Timeline timeline, const Costs& costs);

}  // namespace gpipe
