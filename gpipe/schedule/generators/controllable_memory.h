// The schedules V-Half and V-Min of "Pipeline Parallelism with Controllable
// Memory" (arXiv 2405.15362). They take about a half and a third of 1F1B's
// activation memory, and have more idle time.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Both schedules place stages in a V: rank r of p has the stages r and
// 2p - 1 - r. Backwards are in two parts (I and W). m is the number of
// micro-batches.
//
// The paper defines a building block: the start times of all actions of one
// micro-batch. The block repeats every 6 units of time, so a stage holds as
// many micro-batches as fit into the time from its F to its I. This code takes
// two things from the block: that limit on each stage, and the priority of
// actions. A rank considers the next Fs and Is that can begin, and runs the one
// that is earliest in the repeated block. It runs a W if none can begin, or if
// the chosen action is an F and the rank's memory is full. This removes the
// idle time that the repeated block alone has at the beginning and the end.
//
// In the comments below, a chunk is one micro-batch on one stage. (1F1B's first
// rank holds as much as 2p chunks.) "Idle" is the makespan minus 6m, in units,
// if F, I and W of every stage take one unit each and m is not small. Any m
// works.
//
// Complexity: O(p^2 m). Source: the paper, except for the beginning and the end
// of the schedule, where the rule is our own.

// Returns V-Half. At most p + 2 chunks are in flight on any rank. Idle: 3p - 7
// for even p >= 4, 3p - 5 for odd p >= 3, 1 for p = 2.
//
// Throws std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule v_half(int ranks, int microbatches);

// Returns V-Min. At most 2 floor((p + 4) / 3) chunks are in flight on any rank.
// Idle: 4p - 7 if 3 divides p, else 4p - 5 (for p >= 2).
//
// Throws std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule v_min(int ranks, int microbatches);

}  // namespace gpipe
