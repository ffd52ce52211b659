// Schedules as text: CSV, grids, and how two schedules differ.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// ---- The CSV format of torch.distributed.pipelining

// Returns the schedule as CSV: one line per rank, each with a line end, and
// commas between cells:
//
//   0F0,0F1,0B0,(0F2;1B1)OVERLAP_F_B,(0R2;0B2)
//
// A cell is an action, or the actions of one block in parentheses. OVERLAP_F_B
// follows a block of a forward and a backward (B or I), as in torch.
// Recomputes, O, L and other blocks are an extension, which torch does not
// read.
//
// Accepts any schedule. But parse_schedule() cannot read a schedule without
// ranks, with negative numbers, or in which the last action of a rank has
// `fused_with_next`.
// Complexity: linear. Threads: pure function.
std::string to_csv(const Schedule& schedule);

// Returns the schedule that `csv` describes: parse_schedule(to_csv(s)) is s.
//
// Reads the output of to_csv() and the "compute_only" format of torch 2.11.
// Ignores cells without an action, which torch writes for idle time, and blanks
// around actions. Lines may end in CRLF, and the last line needs no line end. A
// line without actions is a rank with nothing to do.
//
// Only parses; validate() checks that a schedule can be run.
//
// Throws std::invalid_argument if a character does not fit. The text gives the
// line and column (in bytes, from 1) of the first such character, and what was
// expected there. Actions of torch that are not computation (SEND_F, UNSHARD,
// REDUCE_GRAD, ...) are errors, since a schedule here does not contain them.
// Complexity: linear. Threads: pure function.
Schedule parse_schedule(std::string_view csv);

// ---- Grids: one line per rank, one column per tick

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

// ---- Differences, for messages

// Returns how schedule `b` differs from `a`, or "" if they are equal: "a has 8
// micro-batches and b has 4 micro-batches", or "action 3 of rank 1 is 1F2 in a
// and 1B0 in b". An action with `fused_with_next` is written as "1F2 + next".
// `name_a`, `name_b`: what the text calls them.
std::string describe_difference(const Schedule& a, const std::string& name_a,
                                const Schedule& b, const std::string& name_b);

}  // namespace gpipe
