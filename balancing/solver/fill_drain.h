// The cut with the smallest step time under GPipe's schedule. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe::balancing {

// Returns the time of one mini-batch under GPipe's schedule
// (gpipe/schedule/fill_drain.h), in the unit of the costs:
//
//   sum of all costs + (microbatches - 1) * (largest forward of a partition
//                                            + largest backward of a partition)
//
// All forwards, and then all backwards, pass through the partitions one after
// the other, everywhere in the same order. That is a proportionate flow shop,
// and the formula is its exact length (M. Pinedo, "Scheduling", 6.1) if copies
// cost nothing. See balancing/chain/chain.h for copies.
//
// `forward`, `backward`: one cost per layer, for one micro-batch, >= 0.
// `balance`: layers per partition, each > 0.
//
// Throws std::invalid_argument if the lists differ in length, if a cost is
// negative, infinite or NaN, if the balance does not match the layers, or if
// `microbatches` < 1.
// Threads: pure function.
double fill_drain_time(const std::vector<double>& forward,
                       const std::vector<double>& backward,
                       const std::vector<int64_t>& balance,
                       int64_t microbatches);

// Returns the layers per partition, each > 0, of a cut with the smallest
// fill_drain_time().
//
// balance_cost() of the sums (balancing/solver/partition.h) assumes that the
// same partition has the slowest forward and the slowest backward. Where that
// is false, the cut of this function is faster; it is never slower.
//
// Ties: among the best cuts, those whose largest sum of forward and backward is
// smallest are kept. Among these, the result is the one that balance_cost()
// would choose, or one that is approximately even if there are too many. With
// one micro-batch all cuts take the same time, so the result is balance_cost()
// of the sums.
//
// The result is exact, with costs rounded to multiples of a power of two that
// is at most n * 2^-59 of the largest cost.
//
// Throws std::invalid_argument as fill_drain_time() does, if `partitions` < 1,
// or if there are fewer layers than partitions.
// Complexity: that of balance_cost() times the number of candidate pairs of a
// largest forward and a largest backward. A pair is a candidate if neither time
// can be lowered without raising the other, and if its sum may still be the
// smallest. There is one if backwards are proportional to forwards, and rarely
// more than a few dozen.
// Threads: pure function.
std::vector<int64_t> balance_fill_drain(const std::vector<double>& forward,
                                        const std::vector<double>& backward,
                                        int64_t partitions,
                                        int64_t microbatches);

}  // namespace gpipe::balancing
