// A schedule as a grid of text, ranks by time.
#pragma once

#include <cstddef>
#include <string>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// One line per rank and one column per tick, by start_ticks() (order.h): every
// action takes one. '.' is an idle tick, and parentheses hold a block:
//
//   tick    0   1   2   3    4    5   6
//   rank 0  0F0 .   .   (0F1 0B0) .   0B1
//   rank 1  .   1F0 1B0 .    1F1  1B1 .
//
// A rank that gets stuck ends with the action that it waits at, as "0B0?". A
// schedule need not be valid for this.
//
// Complexity: linear in the size of the grid. Threads: pure function.
std::string to_grid(const Schedule& schedule);

// The part of the grid around ranks[rank][position], or what it has instead of
// it where the rank gets stuck before: at most 16 ticks and 8 ranks, and a line
// that says which ones, if these are not all. For messages.
std::string grid_around(const Schedule& schedule, std::size_t rank,
                        std::size_t position);

}  // namespace gpipe
