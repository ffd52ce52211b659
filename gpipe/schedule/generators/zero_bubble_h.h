// The schedules ZB-H1 and ZB-H2 of "Zero Bubble Pipeline Parallelism" (arXiv
// 2401.10241): 1F1B with backwards in two parts. The previous stage waits only
// for I, and W fills time in which the rank would be idle.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

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

}  // namespace gpipe
