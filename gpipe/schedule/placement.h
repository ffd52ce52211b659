// The rank of each stage of a schedule.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// A rule that places several stages on each of n ranks.
enum class Placement {
  kLoop,  // stage s on rank s modulo n: interleaved(), looped_bfs()
  kV,     // ranks 0 to n - 1, then n - 1 to 0, and so on: zero_bubble_v()
};

// Returns the rank of each of `stages` stages. `ranks` must be above 0.
// Complexity: linear.
std::vector<int> place_stages(int stages, int ranks, Placement placement);

// Return one more than the largest stage, or micro-batch, in the schedule; 0 if
// it has no action. The schedule need not be valid.
//
// Throw std::invalid_argument if that number is no int: if there is a stage, or
// a micro-batch, 2147483647. Complexity: linear.
int num_stages(const Schedule& schedule);
int num_microbatches(const Schedule& schedule);

// Returns the rank of each of the num_stages() stages; -1 for a stage that does
// not occur. The schedule may be a part of another one (for example one rank of
// many) and may then leave stages out.
//
// Throws std::invalid_argument if num_stages() does, if a stage is below 0 or
// on two ranks, or if num_stages() is far larger than the number of actions
// (see most_cells() in gaps.h). Complexity: linear.
std::vector<int> rank_of_stage(const Schedule& schedule);

}  // namespace gpipe
