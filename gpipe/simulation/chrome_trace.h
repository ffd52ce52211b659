// Timelines for chrome://tracing and ui.perfetto.dev.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/named_timeline.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// JSON in the Trace Event Format (JSON object form), an event per line:
//
// - a process per timeline, and in it a track per rank and one per link over
//   which copies take time; a rank with overlapped pairs has a second track,
//   for the second action of each;
// - an action is a complete event, named as in to_string(Action), with its
//   stage, kind and micro-batch as arguments; a copy is another one, with its
//   bytes if they are known;
// - so is the time between actions, of category "idle", named by its cause (see
//   idle.h);
// - an arrow goes from each F to that of the next stage, and from each B or I
//   to that of the stage before;
// - a counter of each rank's bytes, where the timeline has its memory.
//
// Times are in microseconds. Names may be any text; what is not UTF-8 in them
// is replaced.
//
// Errors and complexity: those of idle_spans(). Threads: pure functions.
std::string to_chrome_trace(const std::vector<NamedTimeline>& timelines);
std::string to_chrome_trace(const Timeline& timeline);

}  // namespace gpipe
