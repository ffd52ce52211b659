// A step's timeline in a file, and in words.
#pragma once

#include <string>

#include "gpipe/simulation.h"

namespace gpipe {

// What `timeline` says, some lines: how long the step took; how long each rank
// was busy, how much of that was recomputing, and how long it was idle; why it
// was idle (see idle_parts()), in parts that add up to that; what was copied
// over each link, and the most memory, where these are known.
//
//   timeline: 41.5 ms, 2 ranks, bubble 20.5 %
//              busy          recompute           idle         peak memory
//     rank 0  33 ms  79.5 %       0 us  0.0 %  8.5 ms  20.5 %      96 MiB
//   ...
//
// Errors: std::invalid_argument as idle_parts(). Threads: pure function.
std::string timeline_summary(const Timeline& timeline);

// Writes to_chrome_trace(timeline), for ui.perfetto.dev and chrome://tracing,
// in place of what the file held, and returns timeline_summary(timeline):
//
//   const auto result = pipeline->train_step(
//       data, target, loss, schedule, gpipe::TrainOptions().timeline(true));
//   std::cout << gpipe::write_trace("step.json", *result.timeline);
//
// Errors: c10::Error with the path and the reason if it cannot be written; the
// file is as it was then. Of processes each has a file of its own.
std::string write_trace(const std::string& path, const Timeline& timeline);

}  // namespace gpipe
