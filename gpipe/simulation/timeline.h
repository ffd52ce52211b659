// When each action of a schedule starts and ends, predicted or measured.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Whether `action` is the first of an overlapped pair, whose two actions have
// the same span. (A late recompute and its backward have one each.)
inline bool is_overlapped(const Action& action) {
  return action.with_next && action.kind != Kind::kRecompute;
}

// When an action ran.
struct Span {
  Action action;
  double start = 0, end = 0;  // seconds from the beginning of the step
};

// A copy of what `action` made, to another rank: that of a neighbouring stage,
// or of one that a skip tensor goes to.
struct Transfer {
  Action action;
  int from = 0, to = 0;  // ranks: the link
  // Seconds: it starts, leaves the link to the next one, and is there.
  double start = 0, sent = 0, end = 0;
  double bytes = 0;  // 0: not known
};

// A step of a rank's memory over time.
struct MemoryPoint {
  double time = 0, bytes = 0;  // from this time to that of the next point
};

// Made by simulate() or timeline_of().
struct Timeline {
  // As Schedule::ranks. The two actions of an overlapped pair have the same
  // span, that of their block.
  std::vector<std::vector<Span>> ranks;
  // Which rank ranks[0] is, where a process knows of its own one only: then
  // what comes from others and goes there is in `transfers`.
  int first_rank = 0;
  double makespan = 0;       // the end of the last action
  std::vector<double> idle;  // of each rank: makespan less what it works
  // Of each rank, most micro-batches (of a stage) at any one time of which the
  // forward has begun and the backward, with its weight part, has not ended.
  std::vector<int> peak_in_flight;

  // The two usual definitions of the bubble; 0 if no rank works. A recompute
  // counts as work.
  //
  // The part of all ranks' time that is idle, 0 to 1: (p - 1) / (m + p - 1) for
  // p equal stages and m micro-batches in GPipe (Huang et al., arXiv
  // 1811.06965, section 2.3); also the "bubble rate" of Zero Bubble (Qi et al.,
  // arXiv 2401.10241).
  double bubble_fraction = 0;
  // Idle time over working time, 0 and more, without end: (p - 1) / m for the
  // same, the "pipeline bubble size" of Megatron-LM (Narayanan et al., arXiv
  // 2104.04473, section 2.2).
  double bubble_ratio = 0;

  // Those that take time; the ones of a link in the order in which they go,
  // perhaps several of an action.
  std::vector<Transfer> transfers;
  // Of each rank; empty if no bytes are known. See memory.h.
  std::vector<std::vector<MemoryPoint>> memory;
  std::vector<double> peak_bytes;
};

// A timeline of spans, measured ones for example: the actions of each rank in
// the order of their starts. Transfers and memory are empty.
//
// Errors: std::invalid_argument for a span that starts before 0 or before the
// one in front of it, ends before it starts or is not finite, naming it.
// Complexity: O(n). Threads: pure function.
Timeline timeline_of(std::vector<std::vector<Span>> ranks);

}  // namespace gpipe
