// V-Half and V-Min of "Pipeline Parallelism with Controllable Memory"
// (arXiv 2405.15362): a half and a third of 1F1B's memory, for more idle time.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Rank r of p has the stages r and 2p - 1 - r; backwards are in two parts. The
// paper repeats one building block, the times of all actions of a micro-batch,
// every 6 units, so a stage holds as many micro-batches as fit into the time
// from its F to its I. Here the block gives these limits and who goes first:
// every rank does the one of its next Fs and Is that is first in the repeated
// block, of those that can begin; a W if none can, or if its memory is full.
// That takes out the idle time which the block alone has at both ends.
//
// Below, a chunk is one micro-batch of one stage (1F1B's first rank has 2p of
// them), and idle is the end of all less 6m, if all parts take one unit and m
// is not small. Any m works.
//
// Complexity: O(p^2 m). Source: the paper; how ends are filled is ours.

// At most p + 2 chunks in flight on any rank. Idle: 3p - 7 for an even p >= 4,
// 3p - 5 for an odd p >= 3, 1 for p = 2.
//
// std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule v_half(int ranks, int microbatches);

// At most 2 floor((p + 4) / 3) chunks in flight on any rank. Idle: 4p - 7 if 3
// divides p, else 4p - 5 (p >= 2).
//
// std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule v_min(int ranks, int microbatches);

}  // namespace gpipe
