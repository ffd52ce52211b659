// Where the stages of a schedule are.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// One more than the largest stage, and than the largest micro-batch, that
// occurs; 0 if there is no action.
int num_stages(const Schedule& schedule);
int num_microbatches(const Schedule& schedule);

// The rank of each of the num_stages() stages, -1 for one that does not occur.
//
// std::invalid_argument for a stage below 0 or on two ranks.
// Complexity of all three: linear.
std::vector<int> rank_of_stage(const Schedule& schedule);

}  // namespace gpipe
