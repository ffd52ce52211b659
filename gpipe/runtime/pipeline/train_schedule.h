// The schedule of a training step: checks, recomputes, and which cells have
// which actions.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Returns whether `schedule` has backwards, and so is no schedule of
// evaluate().
bool has_backward(const Schedule& schedule);

// Returns the cells (stage, micro-batch) that have an action of this kind.
std::set<std::pair<int64_t, int64_t>> cells_with(const Schedule& schedule,
                                                 ActionKind kind);

// Checks `schedule` and returns the rank of each stage. Throws
// std::invalid_argument if the schedule is not valid, and c10::ValueError if it
// does not have `stages` stages on `ranks` ranks. `options`: name of the
// pipeline's options type, for the error.
std::vector<int> check_schedule(const Schedule& schedule, int64_t stages,
                                int64_t ranks, const std::string& options);

// Returns `schedule` with the recomputes of `checkpoint` added. Returns it
// unchanged if it has no backwards, or has recomputes of its own.
Schedule with_checkpoint(const Schedule& schedule, Checkpoint checkpoint);

}  // namespace gpipe::internal
