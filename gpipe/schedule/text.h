// Schedules as text, in the CSV format of torch.distributed.pipelining.
#pragma once

#include <string>
#include <string_view>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

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

}  // namespace gpipe
