// DualPipeV: DualPipe of DeepSeek-V3 (arXiv 2412.19437) folded into a V, as in
// github.com/deepseek-ai/DualPipe. A forward of one chunk and a backward of the
// other are one block, so that each may send while the other one computes.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Rank r of p has the stages r and 2p - 1 - r. Blocks are a forward and a B
// (Action::with_next); where idle time remains at both ends, backwards are in
// two parts.
//
// With equal stages (times of one stage, b = i + w, and FB for a block), m >=
// 2p, i = f and w <= f, all is done (p - 1)(FB + b - 3w) after what the busiest
// rank works. At most 2p + 1 micro-batches (of a stage) are in flight on any
// rank.
//
// With fewer than 2p micro-batches the order is that of 2p, without those that
// are not there; what was in a block with one of them is left alone.
//
// std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule dual_pipe_v(int ranks, int microbatches);

}  // namespace gpipe
