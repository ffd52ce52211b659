// Timelines as traces for chrome://tracing and ui.perfetto.dev.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/named_timeline.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Return JSON in the Trace Event Format (JSON object form), with one event per
// line:
//
// - Each timeline is a process. It has a track for each rank, and for each link
//   over which copies take time. A rank with overlapped pairs has a second
//   track, for the second action of each pair.
// - An action is a complete event, named as in to_string(Action). Its arguments
//   are stage, kind and micro-batch.
// - A copy is a complete event, with its bytes if they are known. Copies to and
//   from the host are on two more tracks of their rank.
// - Idle time is a complete event of category "idle", named by its cause (see
//   idle.h).
// - An arrow goes from each F to the F of the next stage, and from each B or I
//   to the B or I of the previous stage.
// - If the timeline has memory, a counter shows the bytes of each rank.
//
// Times are in microseconds. Names may be any text; invalid UTF-8 is replaced.
//
// Throw std::invalid_argument in the cases of idle_spans(). Complexity: as
// idle_spans(). Threads: pure functions.
std::string to_chrome_trace(const std::vector<NamedTimeline>& timelines);
std::string to_chrome_trace(const Timeline& timeline);

}  // namespace gpipe
