// The cut with the least time under GPipe's schedule. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe::balancing {

// Time of one mini-batch under GPipe's schedule (gpipe/schedule/fill_drain.h),
// in the unit of the costs:
//
//   sum of all costs + (microbatches - 1) * (largest forward of a partition
//                                            + largest backward of a partition)
//
// All forwards, and then all backwards, go through the partitions one after the
// other, in the same order everywhere. That is a proportionate flow shop, of
// which this is the exact length (M. Pinedo, "Scheduling", 6.1), if copies cost
// nothing; see balancing/chain.h for copies.
//
// `forward`, `backward`: of each layer, for one micro-batch, >= 0.
// `balance`: layers per partition, each > 0.
//
// Errors: std::invalid_argument for lists of unequal length, a negative,
// infinite or NaN cost, a balance that does not fit, and microbatches < 1.
// Threads: pure function.
double fill_drain_time(const std::vector<double>& forward,
                       const std::vector<double>& backward,
                       const std::vector<int64_t>& balance,
                       int64_t microbatches);

// Layers per partition, each > 0, of the cut with the least fill_drain_time.
//
// balance_cost of the sums (balancing/partition.h) takes the forwards and the
// backwards to be slowest on the same partition; where they are not, this cut
// is the better one, and it is never worse. Ties: of the best cuts one with the
// smallest largest sum of forward and backward, and of these the one that
// balance_cost would take, or one that is about even if there are too many.
// With one micro-batch all cuts are equal, so that this is balance_cost of the
// sums.
//
// The result is exact, with costs rounded to multiples of a power of two of at
// most n * 2^-59 of the largest.
//
// Errors: std::invalid_argument as above, for partitions < 1, and for fewer
// layers than partitions.
// Complexity: as balance_cost, times the number of pairs of a largest forward
// and a largest backward that cannot be lowered one without the other, and of
// which the sum may still be the least. There is one such pair if backwards are
// proportional to forwards, and seldom more than a few dozen.
// Threads: pure function.
std::vector<int64_t> balance_fill_drain(const std::vector<double>& forward,
                                        const std::vector<double>& backward,
                                        int64_t partitions,
                                        int64_t microbatches);

}  // namespace gpipe::balancing
