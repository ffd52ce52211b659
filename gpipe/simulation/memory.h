// The bytes that each rank holds over time.
#pragma once

#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Returns `timeline` with `memory` and `peak_bytes`, computed from the bytes in
// `costs`. The timeline may be simulated or measured. If all lists of bytes are
// empty, returns it unchanged.
//
// A rank holds the activations of a cell (stage and micro-batch) from the start
// of F to the end of B or W. If the cell has an R, F holds only the input, and
// the activations are held from the start of R. From the end of the copy of an
// O to the start of the copy of its L, `offload_bytes` of them are not held.
// After I, only `weight_activation_bytes` are held. A cell without a backward
// is held to the end, and a cell without a forward from the beginning, since
// actions that are not in the schedule count as done. If an action ends when
// another one starts, its memory is freed first.
//
// Throws std::invalid_argument if costs are invalid (check_costs()), or if a
// list is not empty but lacks a stage. Complexity: O(n), O(n log n) if spans of
// a rank overlap or if it has copies to the host. Threads: pure function.
Timeline with_memory(Timeline timeline, const Costs& costs);

}  // namespace gpipe
