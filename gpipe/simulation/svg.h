// Timelines as a picture.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/named_timeline.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// An SVG document, `width` pixels wide, that needs no other file: below each
// other, on one scale of time, each timeline with
//
// - a lane per rank (from Timeline::first_rank on), where an action is a box in
//   the colour of its kind (paler for the later stages of a rank), with its
//   name, if there is room, and its times as a tooltip; an overlapped pair has
//   half of the height each; what is hatched is idle;
// - a line per copy, from rank to rank;
// - below, if the timeline has it, the memory of each rank on one scale.
//
// Names may be any UTF-8. An empty one is left out.
//
// Errors: std::invalid_argument unless width >= 400.
// Complexity: linear; a box takes some 200 bytes, so pictures of more than
// some 10^5 actions are for to_chrome_trace(). Threads: pure functions.
std::string to_svg(const std::vector<NamedTimeline>& timelines,
                   int width = 1200);
std::string to_svg(const Timeline& timeline, int width = 1200);

}  // namespace gpipe
