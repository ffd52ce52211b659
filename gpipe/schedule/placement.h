// Where the stages of a schedule are.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Where the stages of several per rank are.
enum class Placement {
  kLoop,  // stage s on rank s modulo n: interleaved(), looped_bfs()
  kV,     // 0 to n - 1, then back from n - 1 to 0: zero_bubble_v()
};

// The rank of each of `stages` stages on `ranks` ranks, > 0.
std::vector<int> place_stages(int stages, int ranks, Placement placement);

// One more than the largest stage, and than the largest micro-batch, that
// occurs; 0 if there is no action.
int num_stages(const Schedule& schedule);
int num_microbatches(const Schedule& schedule);

// The rank of each of the num_stages() stages, -1 for one that does not occur.
//
// std::invalid_argument for a stage below 0 or on two ranks.
// Complexity of all: linear.
std::vector<int> rank_of_stage(const Schedule& schedule);

}  // namespace gpipe
