// A timeline as lines of text.
#pragma once

#include <string>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Returns a line for the axis of time, and a line per rank (from
// Timeline::first_rank on). `columns` characters of each line show the time
// from 0 to the makespan:
//
//           0                                 6 ms
//   rank 0 |0F0--0F1--.....................0B1----| idle 50.0 %
//
// An action is its name if there is room, otherwise its letter, with dashes up
// to its end. An overlapped pair is both names with a '&'. '.' is idle time.
// Actions shorter than half a column may be invisible. The copies of a rank to
// and from its host are on two more lines, "to host" and "from host".
//
// Throws std::invalid_argument unless columns >= 1.
// Complexity: linear. Threads: pure function.
std::string to_text(const Timeline& timeline, int columns = 100);

}  // namespace gpipe
