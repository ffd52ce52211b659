// Timelines that several tests draw.
#pragma once

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Rank 1 of two, with the rank before in another process: its input arrives
// from 2 to 3, and is looked at at 3.5.
inline Timeline second_of_two() {
  Timeline timeline = timeline_of({{{{1, Kind::kForward, 0}, 3.5, 4}}});
  timeline.first_rank = 1;
  timeline.transfers = {{{0, Kind::kForward, 0}, 0, 1, 2, 3, 3, 64}};
  timeline.memory = {{{0, 10}}};
  timeline.peak_bytes = {10};
  return timeline;
}

}  // namespace gpipe
