// Schedules by name, for programs whose users choose one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns all names: fill-drain, 1f1b, eager-1f1b, interleaved-1f1b,
// looped-bfs, zb-h1, zb-h2, zb-interleaved, zbv, v-half, v-min, dualpipe-v,
// forward-only.
std::vector<std::string> schedule_names();

// Returns the names of the schedules with backwards, in the order of
// schedule_names(): all but forward-only.
std::vector<std::string> training_schedule_names();

// Returns the number of stages per rank that the schedule needs, or nullopt if
// it takes any number.
//
// Throws std::invalid_argument, with all names, if there is no schedule `name`.
std::optional<int> fixed_stages_per_rank(const std::string& name);

// Returns the schedule that the generator called `name` makes, for example
// fill_drain(ranks, microbatches) for "fill-drain".
//
// Throws std::invalid_argument, with all names, if there is no schedule `name`;
// if the schedule cannot have `stages_per_rank` (the text gives the number that
// it needs); and unless all three numbers are at least 1, and their product is
// at most 2^28. The generators refuse such numbers, too.
Schedule named_schedule(const std::string& name, int ranks, int microbatches,
                        int stages_per_rank);

}  // namespace gpipe
