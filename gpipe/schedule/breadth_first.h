// Schedules that run all forwards, then all backwards: GPipe's and
// breadth-first ones, and the one of inference.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns the schedule in which every rank runs all its forwards, then all its
// backwards. Stage s is on rank `rank_of_stage[s]`; m is `microbatches`.
//
// A rank runs F of micro-batches 0..m-1 on its first stage, then on its next
// stage, and so on. Then it runs B of micro-batches m-1..0, from its last stage
// to its first. With one stage per rank this is GPipe's schedule
// (fill_drain()). With stage s on rank s modulo p it is looped_bfs().
//
// Throws std::invalid_argument if there is no stage or no micro-batch, or if a
// rank between 0 and the largest one has no stage.
Schedule breadth_first(const std::vector<int>& rank_of_stage, int microbatches);

// Returns GPipe's schedule (arXiv 1811.06965). Stage s is on rank s. Each rank
// runs F of micro-batches 0..m-1, then B of m-1..0, where m is `microbatches`.
// Backwards run in reverse order, as in autograd. So the last micro-batch comes
// first, which is the one that keeps its graph if all others are checkpointed.
//
// With n equal stages, where F takes f and B takes b seconds, the makespan is
// (m + n - 1)(f + b). Each rank is idle for (n - 1)(f + b) of it.
//
// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule fill_drain(int stages, int microbatches);

// Returns the schedule of breadth-first pipeline parallelism (arXiv
// 2211.05953), GPipe's with several stages per rank, for p `ranks`, m
// `microbatches` and v `stages_per_rank`. Rank r has the stages r, r + p, ...,
// r + (v - 1) p. It runs F of micro-batches 0..m-1 on its first stage, then on
// its next stage, and so on. Then it runs B of m-1..0, from its last stage to
// its first.
//
// With equal stages (f and b are the seconds of one stage) the makespan is
// ((v - 1) max(m, p) + m + p - 1)(f + b). If m >= p, each rank is idle for
// (p - 1)(f + b) of it. A latency c between ranks adds 2(pv - 1) c if m <= p
// and p > 1. If m > p, it adds only 2(p - 1) c as long as
// pc <= (m - p) min(f, b). All mv micro-batches (each on one stage) of a rank
// are in flight together.
//
// Throws std::invalid_argument unless all three are at least 1.
Schedule looped_bfs(int ranks, int microbatches, int stages_per_rank);

// Returns the schedule of inference, without backwards. Stage s is on rank s
// and runs F of micro-batches 0..m-1, where m is `microbatches`. With n equal
// stages, where F takes f seconds, the makespan is (m + n - 1) f.
//
// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule forward_only(int stages, int microbatches);

}  // namespace gpipe
