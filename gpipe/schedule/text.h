// Schedules as text: the CSV of torch.distributed.pipelining.
#pragma once

#include <string>
#include <string_view>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// One line per rank, in their order, each with a line end; cells with commas
// between them:
//
//   0F0,0F1,0B0,(0F2;1B1)OVERLAP_F_B,(0R2;0B2)
//
// A cell is an action, or in parentheses the actions of one block. A forward
// with a backward (B or I) has OVERLAP_F_B behind it, as in torch. Recomputes,
// and any other block, are ours: torch does not read them.
//
// Any schedule can be written. What cannot be read again: one without ranks,
// negative numbers, and a last action of a rank that is marked with_next.
std::string to_csv(const Schedule& schedule);

// The schedule that `csv` says. parse_schedule(to_csv(s)) is s.
//
// Reads what to_csv and torch 2.11 write as "compute_only": cells without an
// action, which torch has for idle time, are dropped, and lines may end in
// CRLF. Blanks around actions are dropped as well, and the last line needs no
// end. A line with nothing on it is a rank with nothing to do.
//
// This reads, and no more: see validate() for whether a schedule can be run.
//
// Errors: std::invalid_argument with the line and column (in bytes, from 1) of
// the first character that does not fit, and what was expected there. Among
// these is what torch has besides computation (SEND_F, UNSHARD, REDUCE_GRAD
// ...): a schedule here does not say it.
// Complexity: linear. Threads: pure function.
Schedule parse_schedule(std::string_view csv);

}  // namespace gpipe
