// The schedule DualPipeV: DualPipe of DeepSeek-V3 (arXiv 2412.19437) folded
// into a V, as in github.com/deepseek-ai/DualPipe. A forward of one of the
// rank's stages and a backward of its other stage form one block, so that one
// can communicate while the other computes.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns DualPipeV. Rank r of p has the stages r and 2p - 1 - r. A block is a
// forward and a B (Action::fused_with_next). Near the beginning and the end,
// where ranks would be idle, backwards are in two parts (I and W).
//
// Let f, b, i, w be the seconds of the actions of one stage, b = i + w, and FB
// those of a block; m is `microbatches`. With equal stages, m >= 2p, i = f and
// w <= f, the makespan is the work of the busiest rank plus
// (p - 1)(FB + b - 3w). At most 2p + 1 micro-batches (each on one stage) are in
// flight on any rank.
//
// With fewer than 2p micro-batches the order is the one for 2p, without the
// missing micro-batches. If one action of a block is missing, the other one
// stays as a single action.
//
// Throws std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule dual_pipe_v(int ranks, int microbatches);

}  // namespace gpipe
