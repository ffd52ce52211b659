// A file and a text summary of a step's timeline.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation.h"

namespace gpipe {

// Returns a summary of some lines. It has the duration of the step and, for
// each rank, the busy time, the part of it that is recompute, and the idle
// time. It splits the idle time by cause (see idle_parts()). If `timeline` has
// them, it also has the copies over each link and the peak memory.
//
//   timeline: 41.5 ms, 2 ranks, bubble 20.5 %
//              busy          recompute           idle         peak memory
//     rank 0  33 ms  79.5 %       0 us  0.0 %  8.5 ms  20.5 %      96 MiB
//   ...
//
// Throws std::invalid_argument if idle_parts() does. Thread-safe.
std::string timeline_summary(const Timeline& timeline);

// Writes to_chrome_trace(timeline) to a file for ui.perfetto.dev and
// chrome://tracing. Replaces the file if it exists. Returns
// timeline_summary(timeline):
//
//   const auto result = pipeline->train_step(
//       data, target, loss, schedule, gpipe::TrainOptions().timeline(true));
//   std::cout << gpipe::write_trace("step.json", *result.timeline);
//
// The second form writes several timelines into one file, for example those of
// all replicas of a pipeline (gpipe/distributed/timeline.h brings the timelines
// of several processes together), and returns their summaries with their names.
//
// Throw c10::Error, with the path and the reason, if the file cannot be
// written. An existing file is unchanged then.
std::string write_trace(const std::string& path, const Timeline& timeline);
std::string write_trace(const std::string& path,
                        const std::vector<NamedTimeline>& timelines);

}  // namespace gpipe
