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
// occurs; 0 if there is no action. Of any schedule, valid or not.
//
// std::invalid_argument where that is no int: for a stage, or a micro-batch, of
// 2147483647.
int num_stages(const Schedule& schedule);
int num_microbatches(const Schedule& schedule);

// The rank of each of the num_stages() stages, -1 for one that does not occur.
//
// std::invalid_argument as above, for a stage below 0 or on two ranks, and for
// one that is far beyond the number of actions. (A part of a schedule, of one
// rank of many, may leave stages out.)
// Complexity of all: linear.
std::vector<int> rank_of_stage(const Schedule& schedule);

}  // namespace gpipe
