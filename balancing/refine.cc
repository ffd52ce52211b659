#include "balancing/refine.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <string>

#include "gpipe/base/text.h"

namespace gpipe::balancing {
namespace {

using Balance = std::vector<int64_t>;
using Starts = std::vector<Balance>;

std::string to_string(const Balance& balance) {
  return absl::StrCat("[", absl::StrJoin(balance, ", "), "]");
}

int64_t layers_of(const Balance& balance) {
  return std::accumulate(balance.begin(), balance.end(), int64_t{0});
}

void check(const Starts& starts, const RefineOptions& options) {
  if (starts.empty()) internal::refuse("there is no balance to start from");
  if (options.score_calls < 0) {
    internal::refuse("score_calls is ", options.score_calls,
                     ": it must not be negative");
  }
  for (std::size_t k = 0; k < starts.size(); ++k) {
    if (starts[k].empty()) internal::refuse("start ", k, " has no partitions");
    for (std::size_t j = 0; j < starts[k].size(); ++j) {
      if (starts[k][j] < 1) {
        internal::refuse("start ", k, " has ", starts[k][j],
                         " layers in partition ", j,
                         ": each needs a layer of its own");
      }
    }
    if (starts[k].size() != starts[0].size() ||
        layers_of(starts[k]) != layers_of(starts[0])) {
      internal::refuse("start ", k, " cuts ", layers_of(starts[k]),
                       " layers into ", starts[k].size(),
                       " partitions, start 0 ", layers_of(starts[0]), " into ",
                       starts[0].size());
    }
  }
}

class Refining {
 public:
  explicit Refining(const BalanceScore& score) : score_(score) {}

  const Balance& best() const { return best_; }

  // Returns the score of a balance, and calls score_ only for a new one.
  double score(const Balance& balance) {
    const auto known = scores_.find(balance);
    if (known != scores_.end()) return known->second;
    const double score = score_(balance);
    if (std::isnan(score)) {
      internal::refuse("the score of the balance ", to_string(balance),
                       " is nan");
    }
    scores_.emplace(balance, score);
    if (best_.empty() || score < best_score_) {
      best_ = balance;
      best_score_ = score;
    }
    return score;
  }

  // Scores all cuts, starting with the one that has the shortest first blocks.
  void exhaust(int64_t layers, int64_t partitions) {
    Balance balance(partitions, 1);
    balance.back() = layers - partitions + 1;
    for (;;) {
      score(balance);
      // The last partition that has more than one layer gives one to the
      // partition before it, and the rest of its layers to the last partition.
      std::size_t giver = balance.size() - 1;
      while (giver > 0 && balance[giver] == 1) --giver;
      if (giver == 0) return;
      const int64_t rest = balance[giver] - 1;
      balance[giver] = 1;
      ++balance[giver - 1];
      balance.back() = rest;
    }
  }

  // Moves from `at` to better cuts until no move helps or `calls` calls of the
  // score have been made. Returns the number of calls made.
  int64_t climb(Balance at, int64_t calls) {
    calls_left_ = calls;
    int64_t largest = 1;
    while (2 * largest < layers_of(at)) largest *= 2;
    double at_score = score(at);
    // After a move, larger steps may help again.
    for (int64_t step = largest; step >= 1 && calls_left_ > 0;) {
      step = improve(at, at_score, step) ? largest : step / 2;
    }
    return calls - calls_left_;
  }

 private:
  // Applies each move that is better at once. Returns whether there was one.
  bool improve(Balance& at, double& at_score, int64_t step) {
    bool improved = false;
    const std::size_t partitions = at.size();
    const auto try_move = [&](std::size_t from, std::size_t to,
                              int64_t layers) {
      // Without calls, moves lead to known cuts only.
      if (at[from] <= layers || calls_left_ == 0) return;
      Balance moved = at;
      moved[from] -= layers;
      moved[to] += layers;
      improved |= try_balance(moved, at, at_score);
    };
    // Several neighbouring cut positions move together: one partition gives
    // layers to another, and the partitions between them keep their lengths.
    for (std::size_t apart = 1; apart < partitions; ++apart) {
      for (std::size_t j = 0; j + apart < partitions; ++j) {
        try_move(j, j + apart, step);
        try_move(j + apart, j, step);
      }
    }
    // Two cut positions move apart or towards each other: a partition takes
    // layers from both neighbours, or gives to both.
    for (std::size_t j = 1; j + 1 < partitions; ++j) {
      for (int64_t layers : {step, -step}) {
        Balance moved = at;
        moved[j - 1] -= layers;
        moved[j] += 2 * layers;
        moved[j + 1] -= layers;
        improved |= try_balance(moved, at, at_score);
      }
    }
    return improved;
  }

  bool try_balance(const Balance& balance, Balance& at, double& at_score) {
    if (std::ranges::min(balance) < 1) return false;
    if (scores_.count(balance) == 0 && calls_left_ == 0) return false;
    const auto known = std::ssize(scores_);
    const double other = score(balance);
    calls_left_ -= std::ssize(scores_) - known;
    if (!(other < at_score)) return false;
    at = balance;
    at_score = other;
    return true;
  }

  const BalanceScore& score_;
  int64_t calls_left_ = 0;
  std::map<Balance, double> scores_;
  Balance best_;
  double best_score_ = 0;
};

}  // namespace

bool detail::has_few_cuts(int64_t layers, int64_t partitions, int64_t most) {
  // Computes the binomial coefficient of (layers - 1) over (partitions - 1) by
  // factors whose products are whole and grow. A double does not overflow
  // before the product exceeds `most`.
  const int64_t places = layers - 1;
  const int64_t cuts = std::min(partitions - 1, layers - partitions);
  double ways = 1;
  for (int64_t k = 1; k <= cuts; ++k) {
    ways =
        ways * static_cast<double>(places - cuts + k) / static_cast<double>(k);
    if (ways > static_cast<double>(most) + 0.5) return false;
  }
  return ways <= static_cast<double>(most) + 0.5;
}

std::vector<int64_t> refine(const Starts& starts, const BalanceScore& score,
                            const RefineOptions& options) {
  check(starts, options);
  Refining refining(score);
  for (const Balance& start : starts) refining.score(start);
  const int64_t layers = layers_of(starts[0]);
  const auto partitions = std::ssize(starts[0]);
  if (detail::has_few_cuts(layers, partitions, options.score_calls)) {
    refining.exhaust(layers, partitions);
    return refining.best();
  }
  int64_t left = options.score_calls;
  auto climbs = std::ssize(starts);
  for (const Balance& start : starts) {
    // Each start gets an equal share of the calls that are left.
    left -= refining.climb(start, left / climbs--);
  }
  return refining.best();
}

std::vector<int64_t> refine(const std::vector<int64_t>& start,
                            const BalanceScore& score,
                            const RefineOptions& options) {
  return refine(Starts{start}, score, options);
}

}  // namespace gpipe::balancing
