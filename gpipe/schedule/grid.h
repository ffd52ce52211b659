// A schedule as a grid of text: one line per rank, one column per tick.
#pragma once

#include <cstddef>
#include <string>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns the grid of `schedule`. Every action takes one tick and starts at the
// tick that start_ticks() (order.h) gives. '.' is an idle tick. Parentheses
// enclose a block (Action::fused_with_next):
//
//   tick    0   1   2   3    4    5   6
//   rank 0  0F0 .   .   (0F1 0B0) .   0B1
//   rank 1  .   1F0 1B0 .    1F1  1B1 .
//
// If a rank gets stuck, its line ends with the action that cannot start, for
// example "0B0?". The schedule need not be valid.
//
// Complexity: linear in the size of the grid. Threads: pure function.
std::string to_grid(const Schedule& schedule);

// Returns the part of the grid around the action `ranks[rank][position]`, for
// error texts. If the rank gets stuck before that action, returns the part
// around the action where it gets stuck. The part has at most 16 ticks and 8
// ranks. If it is not the whole grid, a last line says which ticks and ranks it
// shows. Threads: pure function.
std::string grid_around(const Schedule& schedule, std::size_t rank,
                        std::size_t position);

}  // namespace gpipe
