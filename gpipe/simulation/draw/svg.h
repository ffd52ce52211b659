// Timelines as an SVG picture.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/named_timeline.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Return an SVG document, `width` pixels wide, that needs no other file. All
// timelines have the same scale of time, one below the other. Each has:
//
// - A lane per rank (from Timeline::first_rank on). An action is a box in the
//   colour of its kind, paler for later stages of a rank. The box shows the
//   action's name, if there is room, and its times as a tooltip. The two
//   actions of an overlapped pair have half of the height each. Idle time is
//   hatched.
// - A strip below the lane for the rank's copies to its host (upper half) and
//   from it, if the timeline has any.
// - A line per copy between ranks of the timeline, if its first_rank is 0.
// - The memory of each rank, all on one scale, if the timeline has it.
//
// Names may be any UTF-8. An empty name is not drawn.
//
// Throws std::invalid_argument unless width >= 400.
// Complexity: linear. A box takes about 200 bytes, so use to_chrome_trace() for
// more than about 10^5 actions. Threads: pure functions.
std::string to_svg(const std::vector<NamedTimeline>& timelines,
                   int width = 1200);
std::string to_svg(const Timeline& timeline, int width = 1200);

}  // namespace gpipe
