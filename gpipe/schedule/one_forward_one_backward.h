// 1F1B and its family: interleaved 1F1B, and the zero-bubble schedules ZB-H1,
// ZB-H2 and interleaved ZB-H1.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// ---- 1F1B, also called PipeDream-Flush (arXiv 2006.09503) or DAPPLE's early
// backward (arXiv 2007.01045)
//
// It takes as long as GPipe's schedule, but a rank holds no more micro-batches
// than it needs.

// Returns 1F1B for n `stages` and m `microbatches`. Stage s is on rank s. The
// rank runs min(m, n - 1 - s) forwards, then alternates one forward and one
// backward, then runs the remaining backwards. Both take micro-batches in
// ascending order.
//
// With equal stages, where F takes f and B takes b seconds, the makespan is
// (m + n - 1)(f + b). Each rank is idle for (n - 1)(f + b) of it. At most
// min(m, n - s) micro-batches are in flight on rank s. A latency c between
// ranks adds 2c (k - floor(k / n)) for k = m + n - 2: in the steady state, a
// rank waits for two copies per micro-batch.
//
// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule one_forward_one_backward(int stages, int microbatches);

// Returns 1F1B with min(m, 2(n - 1 - s)) forwards in the warm-up, which is
// DAPPLE's second policy. While the copy of one micro-batch is under way, a
// rank computes an earlier one. At most min(m, 2(n - 1 - s) + 1) micro-batches
// are in flight on rank s. The makespan is that of 1F1B. A latency c adds only
// 2(n - 1) c, as for GPipe, as long as 2c <= f + b.
//
// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule eager_one_forward_one_backward(int stages, int microbatches);

// ---- Interleaved 1F1B (arXiv 2104.04473)
//
// 1F1B with several stages per rank, which shortens the warm-up and the drain.

// Returns interleaved 1F1B for p `ranks`, m `microbatches`, v `stages_per_rank`
// and groups of g micro-batches.
//
// Rank r has the stages r, r + p, ..., r + (v - 1) p. It runs the forwards of
// one group on its first stage, then of the same group on its next stage, and
// so on; then the next group. Backwards take the same groups, from the rank's
// last stage to its first. The rank runs 2(p - 1 - r) + (v - 1) g forwards (or
// all, if there are fewer), then alternates one forward and one backward, then
// runs the remaining backwards.
//
// With equal stages (f and b are the seconds of one stage) and m >= p, the
// makespan is (mv + p - 1)(f + b). Each rank is idle for (p - 1)(f + b) of it:
// 1/v of the idle time with one stage per rank. At most
// min(mv, 2(p - 1 - r) + (v - 1) g + 1) micro-batches (each on one stage) are
// in flight on rank r. A short latency c between ranks adds 2(pv - 1) c if
// p > 1, p divides m, and g = p.
//
// `group`: g <= m, or 0 for default_group(), which works for any m. A group,
// also the last one with m mod g micro-batches, must have at least p
// micro-batches, or all m. If a group were smaller, the first rank would finish
// it before the last rank begins it. If only the last group were smaller, ranks
// would wait, and some would wait for each other.
//
// Throws std::invalid_argument unless `ranks`, `microbatches` and
// `stages_per_rank` are at least 1, and `group` is 0 or follows the rule above.
Schedule interleaved(int ranks, int microbatches, int stages_per_rank,
                     int group = 0);

// Returns the smallest group with which no rank has to wait; smaller groups
// take less memory. This is `ranks` if it divides `microbatches`, and
// `microbatches` if there are fewer of them than ranks. The result is that of
// torch.distributed.pipelining for all numbers that torch accepts.
//
// Throws std::invalid_argument unless both are at least 1.
int default_group(int ranks, int microbatches);

// ---- ZB-H1 and ZB-H2 of "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241)
//
// 1F1B with backwards in two parts. The previous stage waits only for I, and W
// fills time in which the rank would be idle.

// Returns ZB-H1 for p `ranks` and m `microbatches`. Stage s is on rank s. The
// rank runs min(m, p - 1 - s) forwards, then alternates F and I, then runs the
// remaining Is. The oldest pending W follows each I, except the first s ones.
// The remaining Ws come last.
//
// With equal stages (f, i and w are the seconds of F, I and W) and m >= p, the
// makespan is m(f + i + w) + (p - 1) max(f, i, f + i - w). If f = i = w, the
// bubble is a third of 1F1B's. At most min(m, p) micro-batches are in flight on
// any rank, from F to W: every rank needs the memory of 1F1B's first rank.
//
// Throws std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule zero_bubble_h1(int ranks, int microbatches);

// Returns ZB-H2: as ZB-H1, but with min(m, 2(p - 1 - s)) forwards in the
// warm-up, and no W after the first 2s Is.
//
// With equal stages and m >= 2p - 1, the makespan is
// m(f + i + w) + (p - 1) max(f, i - f, f + i - 2w). If f = i = w, no rank is
// idle between its first action and its last. At most min(m, 2p - 1)
// micro-batches are in flight on any rank.
//
// Throws std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule zero_bubble_h2(int ranks, int microbatches);

// Returns ZB-H1 with several stages per rank, in the order of
// torch.distributed.pipelining, for p `ranks`, m `microbatches` and v
// `stages_per_rank`. Stages and groups of g micro-batches are those of
// interleaved() with default_group(). Rank r runs p - 1 - r + (v - 1) g
// forwards (or all, if there are fewer), then alternates F and I, then runs the
// remaining Is. The oldest pending W follows each I, except the first r ones.
// The remaining Ws come last.
//
// With equal stages (f, i and w are the seconds of one stage) and m >= p, the
// makespan is mv(f + i + w) + (p - 1) max(f, i, f + i - w). At most
// (v - 1) g + p micro-batches (each on one stage) are in flight on any rank,
// which is vp if p divides m. Any m works. With v = 1 this is zero_bubble_h1().
//
// Throws std::invalid_argument unless all three are at least 1.
Schedule zero_bubble_interleaved(int ranks, int microbatches,
                                 int stages_per_rank);

}  // namespace gpipe
