// Timelines as text, as SVG pictures and as traces for viewers.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// One of the timelines of a picture.
struct NamedTimeline {
  std::string name;  // any text: "predicted", "measured", ...
  Timeline timeline;
};

// ---- Text

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

// ---- SVG pictures

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
// Names may be any text; what is not UTF-8, or not a character of XML, becomes
// question marks. An empty name is not drawn.
//
// Throws std::invalid_argument unless width >= 400.
// Complexity: linear. A box takes about 200 bytes, so use to_chrome_trace() for
// more than about 10^5 actions. Threads: pure functions.
std::string to_svg(const std::vector<NamedTimeline>& timelines,
                   int width = 1200);
std::string to_svg(const Timeline& timeline, int width = 1200);

// ---- Traces for chrome://tracing and ui.perfetto.dev

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
//   bottlenecks.h).
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
