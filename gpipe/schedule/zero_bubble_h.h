// The schedules H1 and H2 of "Zero Bubble Pipeline Parallelism"
// (arXiv 2401.10241): 1F1B with the backward in two parts. The next rank waits
// for I only, and W fills what would be idle.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Stage s runs on rank s of p: min(m, p - 1 - s) forwards; then F and I in
// turn, then the Is that are left; a W after each I but the first s, the oldest
// first; then the Ws that are left.
//
// With equal stages and m >= p, all is done after
// m(f + i + w) + (p - 1) max(f, i, f + i - w): a third of 1F1B's bubble if all
// parts take as long. At most min(m, p) micro-batches are in flight on any rank
// (until their W): the memory of 1F1B's first rank, on all.
//
// std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule zero_bubble_h1(int ranks, int microbatches);

// With min(m, 2(p - 1 - s)) forwards first, and Ws 2s behind.
//
// With equal stages and m >= 2p - 1, all is done after
// m(f + i + w) + (p - 1) max(f, i - f, f + i - 2w): if all parts take as long,
// no rank is idle from its first action to its last. At most min(m, 2p - 1)
// micro-batches are in flight on any rank.
//
// std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule zero_bubble_h2(int ranks, int microbatches);

}  // namespace gpipe
