// One timeline of the timelines of several processes.
#pragma once

#include <vector>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Returns the timeline of all ranks. Its time begins at the earliest
// Timeline::began of `parts`.
//
// `parts`: timelines of consecutive ranks, which together make up one schedule.
// Their `began` must be of one clock; if clocks differ by an error, an action
// may seem to start before its input has arrived. Of a copy that both ends
// have recorded, the start is the sender's and the end is the receiver's.
//
// Throws std::invalid_argument if there are no parts, or if the ranks of a part
// do not follow those of the part before. Complexity: O(n log n) for n spans
// and copies. Threads: pure function.
Timeline merge_timelines(std::vector<Timeline> parts);

}  // namespace gpipe
