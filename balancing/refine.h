// A local search for cuts, for schedules without a formula. A function scores
// each cut. No LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace gpipe::balancing {

// Returns the cost of a cut, in any unit; infinity if the cut is not allowed.
using BalanceScore = std::function<double(const std::vector<int64_t>& balance)>;

// The limit of the search of refine().
struct RefineOptions {
  // The largest number of cuts to score, apart from the starts; >= 0.
  int64_t score_calls = 2000;
};

namespace detail {
// Returns whether there are at most `most` ways to cut `layers` into
// `partitions`.
bool has_few_cuts(int64_t layers, int64_t partitions, int64_t most);
}  // namespace detail

// Returns the layers per partition of the best cut that a local search finds.
// It is never worse than any of the `starts`. If nothing better is found, the
// best start is returned, and the first of equal ones.
//
// If there are at most `score_calls` cuts, all are scored and the result is
// exact. Otherwise each start is improved in turn until no move makes it
// better. In a move, any number of neighbouring cut positions shift together by
// 1, 2, 4, ... layers, or two neighbouring ones move apart or towards each
// other. No cut is scored twice.
//
// `score` is called on the calling thread. Equal scores give equal results.
//
// Throws std::invalid_argument if there is no start, if a start has no
// partitions or an empty one, if the starts differ in their number of
// partitions or layers, if `score_calls` < 0, or if a score is NaN. Exceptions
// of `score` are passed on.
// Complexity: `score_calls` plus one call per start. Each call takes O(p) more
// time and O(p) memory.
std::vector<int64_t> refine(const std::vector<std::vector<int64_t>>& starts,
                            const BalanceScore& score,
                            const RefineOptions& options = {});
std::vector<int64_t> refine(const std::vector<int64_t>& start,
                            const BalanceScore& score,
                            const RefineOptions& options = {});

}  // namespace gpipe::balancing
