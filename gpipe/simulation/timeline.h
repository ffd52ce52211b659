// The start and end of each action of a schedule, predicted or measured;
// timelines of several processes as one, and timelines as JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns whether `action` is the first of an overlapped pair. The two actions
// of a simulated pair have the same span. (A late recompute and its backward
// have one span each.)
inline bool is_overlapped(const Action& action) {
  return action.fused_with_next && action.kind != ActionKind::kRecompute;
}

// The time in which an action ran.
struct Span {
  Action action;
  double start = 0, end = 0;  // seconds from the beginning of the step
};

// A copy of the output of `action` to the rank of a neighbouring stage, or of a
// stage that pops a skip tensor.
struct Transfer {
  Action action;
  int from = 0, to = 0;  // ranks: the link
  // Seconds from the beginning of the step: the copy starts, the link is free
  // for the next copy, the copy has arrived.
  double start = 0, sent = 0, end = 0;
  double bytes = 0;  // 0: not known
};

// A copy between a rank's device and its host: `action` is an O or an L.
struct HostCopy {
  Action action;
  // The number of spans of the rank that are before the action in the schedule.
  // The copy may begin when they have ended.
  std::size_t place = 0;
  double start = 0, end = 0;  // seconds from the beginning of the step
};

// A sum of gradients of a rank over the replicas of the pipeline.
struct GradientSum {
  double start = 0, end = 0;  // seconds from the beginning of the step
  double bytes = 0;           // of the gradients
};

// The memory of a rank from `time` until the time of the next point.
struct MemoryPoint {
  double time = 0, bytes = 0;  // seconds from the beginning of the step; bytes
};

// The times of one step of a schedule. Made by simulate() or timeline_of().
struct Timeline {
  // The spans of each rank, in the form of Schedule::ranks, without O and L. In
  // a simulation, the two actions of an overlapped pair have the same span,
  // that of their block.
  std::vector<std::vector<Span>> ranks;
  // The number of the rank ranks[0]. Not 0 if a process knows only its own
  // rank; then `transfers` has the copies from and to other ranks.
  int first_rank = 0;
  // Seconds of the process's std::chrono::steady_clock at the beginning of the
  // step. 0 if the timeline is not measured.
  double began = 0;
  double makespan = 0;       // seconds: the end of the last action
  std::vector<double> idle;  // seconds of each rank: makespan minus work
  // For each rank, the largest number of micro-batches (each on one stage) in
  // flight: from the start of the forward to the end of the backward with its
  // W.
  std::vector<int> peak_in_flight;

  // The two usual definitions of the bubble; 0 if no rank works. A recompute
  // counts as work.
  //
  // The idle part of the time of all ranks, 0 to 1: (p - 1) / (m + p - 1) for p
  // equal stages and m micro-batches in GPipe (Huang et al., arXiv 1811.06965,
  // section 2.3); also the "bubble rate" of Zero Bubble (Qi et al., arXiv
  // 2401.10241).
  double bubble_fraction = 0;
  // Idle time divided by working time, 0 or more, without an upper limit:
  // (p - 1) / m in the same case; the "pipeline bubble size" of Megatron-LM
  // (Narayanan et al., arXiv 2104.04473, section 2.2).
  double bubble_ratio = 0;

  // The copies that take time. Those of one link are in the order in which they
  // are sent. An action may have several.
  std::vector<Transfer> transfers;
  // The copies of each rank to and from its host, in the order of the schedule.
  // Empty if the schedule has no O and L.
  std::vector<std::vector<HostCopy>> host_copies;
  // The sums of each rank, one per bucket of gradients, in the order of their
  // starts. Empty without replicas, and in a simulation.
  std::vector<std::vector<GradientSum>> gradient_sums;
  // The memory of each rank over time, and its peak. Both are empty if no bytes
  // are known. See memory.h.
  std::vector<std::vector<MemoryPoint>> memory;
  std::vector<double> peak_bytes;
};

// Returns the timeline of given spans, for example of measured ones. The spans
// of each rank must be in the order of their starts. `transfers`, `host_copies`
// and `memory` of the result are empty.
//
// Throws std::invalid_argument if a span starts before 0 or before the previous
// one, ends before it starts, is not finite, or is of an O or L (the text names
// it).
// Complexity: O(n). Threads: pure function.
Timeline timeline_of(std::vector<std::vector<Span>> ranks);

namespace internal {
// Returns the actions of each rank: those of its spans, and then the O and L of
// its copies to and from the host.
std::vector<std::vector<Action>> actions_of(const Timeline& timeline);
}  // namespace internal

// ---- Timelines of several processes

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

// ---- Timelines as JSON, to send or to store them

// to_json() returns a timeline as JSON, in which all numbers are exact: spans,
// copies and memory as they are in Timeline, in seconds and bytes.
// parse_timeline() is the reverse, and computes makespan, idle times and
// micro-batches in flight again, as timeline_of() does. It throws
// std::invalid_argument if `text` is no such JSON, also if a number is not
// finite or a list is not of all ranks, and in the cases of timeline_of(). (A
// picture for trace viewers is to_chrome_trace().) Complexity: O(n) for n
// spans, copies and points. Threads: pure functions.
std::string to_json(const Timeline& timeline);
Timeline parse_timeline(std::string_view text);

}  // namespace gpipe
