#include "balancing/solver/fill_drain.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "balancing/solver/caps.h"
#include "balancing/solver/evening.h"
#include "balancing/solver/sums.h"
#include "gpipe/text/refuse.h"

namespace gpipe::balancing {
namespace {

using detail::Sums;

void check(const std::vector<double>& forward,
           const std::vector<double>& backward, int64_t microbatches) {
  if (forward.size() != backward.size()) {
    internal::refuse("there are ", forward.size(), " forward costs and ",
                     backward.size(), " backward costs: each layer has both");
  }
  detail::check_costs(forward, "forward cost");
  detail::check_costs(backward, "backward cost");
  detail::check_microbatches(microbatches);
}

// The largest forward and the largest backward of a cut.
struct Largest {
  int64_t forward, backward;
};

// Returns all pairs with the smallest sum. They are among the pairs in which
// neither time can be lowered without raising the other. The loop visits these
// in order, from the smallest forward on: a smaller backward than the last
// pair's needs a larger forward.
std::vector<Largest> best_pairs(const Sums& forward, const Sums& backward,
                                int64_t partitions) {
  const int64_t least_backward = detail::smallest_limit(backward, partitions);
  std::vector<Largest> best;
  int64_t least_sum = std::numeric_limits<int64_t>::max();
  int64_t at = detail::smallest_limit(forward, partitions);
  for (;;) {
    const int64_t other =
        detail::smallest_limit(backward, partitions, {{&forward, at}});
    if (at + other < least_sum) best.clear();
    if (at + other <= least_sum) {
      least_sum = at + other;
      best.push_back({at, other});
    }
    // The next pair has a larger forward. So its backward must be smaller than
    // this one, and small enough that the sum can still be the smallest.
    const int64_t below = std::min(other - 1, least_sum - at - 1);
    if (below < least_backward) return best;
    at = detail::smallest_limit(forward, partitions, {{&backward, below}});
    if (at + least_backward > least_sum) return best;
  }
}

}  // namespace

double fill_drain_time(const std::vector<double>& forward,
                       const std::vector<double>& backward,
                       const std::vector<int64_t>& balance,
                       int64_t microbatches) {
  check(forward, backward, microbatches);
  detail::check_balance(balance, std::ssize(forward));
  double sum = 0, largest_forward = 0, largest_backward = 0;
  auto f = forward.begin(), b = backward.begin();
  for (int64_t length : balance) {
    const double forwards = std::accumulate(f, f + length, 0.0);
    const double backwards = std::accumulate(b, b + length, 0.0);
    sum += forwards + backwards;
    largest_forward = std::max(largest_forward, forwards);
    largest_backward = std::max(largest_backward, backwards);
    f += length;
    b += length;
  }
  return sum + static_cast<double>(microbatches - 1) *
                   (largest_forward + largest_backward);
}

std::vector<int64_t> balance_fill_drain(const std::vector<double>& forward,
                                        const std::vector<double>& backward,
                                        int64_t partitions,
                                        int64_t microbatches) {
  check(forward, backward, microbatches);
  detail::check_partitions(std::ssize(forward), partitions);

  const int shift = detail::common_shift({&forward, &backward});
  const Sums forwards = detail::prefix_sums(forward, shift);
  const Sums backwards = detail::prefix_sums(backward, shift);
  Sums both(forwards.size());
  std::transform(forwards.begin(), forwards.end(), backwards.begin(),
                 both.begin(), std::plus<>());

  // With one micro-batch all cuts take the same time, so none is excluded.
  const std::vector<Largest> pairs =
      microbatches == 1
          ? std::vector<Largest>{{forwards.back(), backwards.back()}}
          : best_pairs(forwards, backwards, partitions);
  std::vector<int64_t> limits;  // of forward + backward, by pair
  for (const Largest& pair : pairs) {
    limits.push_back(detail::smallest_limit(
        both, partitions,
        {{&forwards, pair.forward}, {&backwards, pair.backward}}));
  }
  const int64_t least = *std::ranges::min_element(limits);

  std::vector<int64_t> best;
  detail::Unevenness best_unevenness;
  for (std::size_t k = 0; k < pairs.size(); ++k) {
    if (limits[k] > least) continue;
    std::vector<int64_t> lengths =
        detail::most_even(both,
                          {{&both, least},
                           {&forwards, pairs[k].forward},
                           {&backwards, pairs[k].backward}},
                          partitions);
    const detail::Unevenness unevenness = detail::unevenness(both, lengths);
    if (best.empty() ||
        detail::is_more_even(unevenness, lengths, best_unevenness, best)) {
      best = std::move(lengths);
      best_unevenness = unevenness;
    }
  }
  return best;
}

}  // namespace gpipe::balancing
