// Schedules whose ranks have two stages each, placed in a V: rank r of p has
// the stages r and 2p - 1 - r. ZB-V, V-Half and V-Min are of "Pipeline
// Parallelism with Controllable Memory" (arXiv 2405.15362).
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns ZB-V for p `ranks` and m `microbatches`, with backwards in two parts
// (I and W). Rank p - 1 has the two middle stages, with no copy between
// them, and rank 0 has the loss.
//
// With equal stages (f, i and w are the seconds of one stage), f <= i, w <= i
// and m >= 2p - 1, the makespan is
// 2m(f + i + w) + (p - 1) max(f, i, 2(i - w)). If f = i = w, no rank is idle
// between its first action and its last. At most 2p micro-batches (each on one
// stage) are in flight on any rank, which is the memory of 1F1B's first rank.
//
// With fewer than 2p - 1 micro-batches the order is the one for 2p - 1, without
// the missing micro-batches.
//
// Throws std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule zero_bubble_v(int ranks, int microbatches);

// ---- V-Half and V-Min
//
// They take about a half and a third of 1F1B's activation memory, and have more
// idle time. Backwards are in two parts (I and W). m is the number of
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

// ---- DualPipeV

// Returns DualPipeV: DualPipe of DeepSeek-V3 (arXiv 2412.19437) folded into a
// V, as in github.com/deepseek-ai/DualPipe. A forward of one of the rank's
// stages and a B of its other stage form one block (Action::fused_with_next),
// so that one can communicate while the other computes. Near the beginning and
// the end, where ranks would be idle, backwards are in two parts (I and W).
//
// Let f, b, i, w be the seconds of the actions of one stage, b = i + w, and FB
// those of a block; m is `microbatches`. With equal stages, m >= 2p, i = f and
// w <= f, the makespan is the work of rank p - 1 plus (p - 1)(FB + b - 3w). All
// ranks have equal work if FB = f + b. At most 2p + 1 micro-batches (each on
// one stage) are in flight on any rank.
//
// With fewer than 2p micro-batches the order is the one for 2p, without the
// missing micro-batches. If one action of a block is missing, the other one
// stays as a single action.
//
// Throws std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule dual_pipe_v(int ranks, int microbatches);

}  // namespace gpipe
