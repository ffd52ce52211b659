// The schedules by name, for programs that let their users choose.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// fill-drain, 1f1b, eager-1f1b, interleaved-1f1b, looped-bfs, zb-h1, zb-h2,
// zb-interleaved, zbv, v-half, v-min, dualpipe-v, forward-only.
std::vector<std::string> schedule_names();

// The number of stages per rank that the schedule has; none if it takes any.
//
// std::invalid_argument, with all names, for a name that is not one.
std::optional<int> fixed_stages_per_rank(const std::string& name);

// What the function of that name returns.
//
// std::invalid_argument, with all names, for a name that is not one; for a
// number of stages per rank that the schedule cannot have, with the one that it
// has; and unless all three numbers are at least 1.
Schedule named_schedule(const std::string& name, int ranks, int microbatches,
                        int stages_per_rank);

}  // namespace gpipe
