#include "balancing/planner/cut.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "balancing/partition.h"
#include "balancing/planner/evaluate.h"
#include "balancing/refine.h"

namespace gpipe::balancing::planner {
namespace {

// The search for the cut of bottleneck_cut().
class Bottleneck {
 public:
  Bottleneck(const Blocks& blocks, const std::vector<double>& work,
             const std::vector<StageLimit>& stages)
      : blocks_(blocks),
        stages_(stages),
        layers_(blocks.layers()),
        sums_(prefix_sums(work)),
        reach_(stages.size()) {}

  std::optional<Balance> cut() {
    if (!may_fit()) return std::nullopt;
    double speeds = 0;
    for (const StageLimit& stage : stages_) speeds += stage.speed;
    double low = sums_.back() / speeds;
    if (low == 0) low = std::numeric_limits<double>::min();
    double high = low;
    // Blocks that are longer than `high` allows are not looked at.
    while (!exists(high)) {
      if (std::isinf(high)) return std::nullopt;
      low = high;
      high *= 2;
      if (high > longest_possible()) high = kInfinity;
    }
    if (std::isinf(high)) high = longest_possible();
    const auto size = layers_ * std::ssize(stages_);
    const double precision = size > kLarge ? kCoarse : kPrecise;
    while (high - low > precision * high) {
      const double middle = low + (high - low) / 2;
      (exists(middle) ? high : low) = middle;
    }
    exists(high);
    return evened();
  }

 private:
  // Fills `farthest_`, the last layer at which each stage can begin if only
  // memory limits blocks and inputs take none. Returns false if some layers are
  // left then. Without inputs, a part of a block that fits always fits.
  bool may_fit() {
    int64_t at = 0;
    for (const StageLimit& stage : stages_) {
      farthest_.push_back(at);
      if (std::isinf(stage.bytes)) {
        at = layers_;
        continue;
      }
      StageLimit limit = stage;
      for (std::vector<Held>& moments : limit.ways) {
        for (Held& each : moments) each[0].input = 0;
      }
      GrowingBlock block(blocks_, at);
      while (block.last() < layers_) {
        block.extend();
        if (!fits(limit, block)) break;
        at = block.last();
      }
    }
    return at == layers_;
  }

  static bool fits(const StageLimit& stage, const GrowingBlock& block) {
    return std::ranges::any_of(stage.ways, [&](const auto& moments) {
      return peak_bytes(moments, block) <= stage.bytes;
    });
  }

  // Returns the time of the whole model on the slowest stage.
  double longest_possible() const {
    double slowest = kInfinity;
    for (const StageLimit& stage : stages_) {
      slowest = std::min(slowest, stage.speed);
    }
    return 2 * sums_.back() / slowest;
  }

  // Returns the last cut that the memory of a stage lets a block from `first`
  // reach, as far as blocks have been looked at.
  int64_t reach_by_memory(std::size_t s, int64_t first, int64_t by_time) {
    const StageLimit& stage = stages_[s];
    if (std::isinf(stage.bytes)) return by_time;
    auto& known = reach_[s];
    if (known.empty()) known.resize(static_cast<std::size_t>(layers_));
    Reach& reach = known[first];
    if (!reach.block) reach.block.emplace(blocks_, first);
    while (!reach.full && reach.block->last() < by_time) {
      GrowingBlock next = *reach.block;
      next.extend();
      reach.full = !fits(stage, next);
      if (!reach.full) reach.block = next;
    }
    return std::min(by_time, reach.block->last());
  }

  // The longest block from some layer on that fits, as far as it is known.
  struct Reach {
    std::optional<GrowingBlock> block;
    bool full = false;  // no further layer fits
  };

  // Returns the cuts at which each stage can begin if stages take up to
  // `seconds`, without regard to memory: (first, last) by stage. If there is no
  // cut at all, the first stage cannot begin at 0.
  std::vector<std::pair<int64_t, int64_t>> windows(double seconds) const {
    const std::size_t stages = stages_.size();
    std::vector<std::pair<int64_t, int64_t>> result(stages + 1,
                                                    {layers_, layers_});
    result[0].second = 0;
    for (std::size_t s = 0; s + 1 < stages; ++s) {
      result[s + 1].second = std::min(
          {reach_by_time(s, result[s].second, seconds),
           layers_ - static_cast<int64_t>(stages - s - 1), farthest_[s + 1]});
    }
    for (std::size_t s = stages; s-- > 0;) {
      const double most = seconds * stages_[s].speed * (1 + kSlack);
      const auto at =
          std::lower_bound(sums_.begin(), sums_.begin() + result[s + 1].first,
                           sums_[result[s + 1].first] - most);
      result[s].first =
          std::max(at - sums_.begin(), static_cast<std::ptrdiff_t>(s));
    }
    return result;
  }

  // Returns the last cut that the block of a stage from `first` on can reach in
  // `seconds`.
  int64_t reach_by_time(std::size_t s, int64_t first, double seconds) const {
    const double most = seconds * stages_[s].speed * (1 + kSlack);
    return std::upper_bound(sums_.begin() + first, sums_.end(),
                            sums_[first] + most) -
           sums_.begin() - 1;
  }

  // Fills `possible_` for a limit of `seconds` per stage, and returns whether
  // there is a cut. possible_[s][c]: whether stages s, s + 1, ... can take the
  // layers from c on.
  bool exists(double seconds) {
    const std::size_t stages = stages_.size();
    const auto window = windows(seconds);
    if (window[0].first > 0) return false;
    possible_.assign(stages + 1, std::vector<char>(layers_ + 1));
    last_.assign(stages, std::vector<int64_t>(layers_ + 1));
    possible_[stages][layers_] = 1;
    for (std::size_t s = stages; s-- > 0;) {
      // The first possible cut after each layer, from the last one on.
      const int64_t end = window[s + 1].second;
      int64_t next = layers_ + 1, seen = end + 1;
      for (int64_t first = std::min(window[s].second, end - 1);
           first >= window[s].first; --first) {
        while (seen > first + 1) {
          if (possible_[s + 1][--seen]) next = seen;
        }
        last_[s][first] =
            reach_by_memory(s, first, reach_by_time(s, first, seconds));
        possible_[s][first] = next <= last_[s][first];
      }
    }
    return possible_[0][0];
  }

  // Returns a cut after exists(): stage after stage takes the possible cut
  // closest to its share of the rest.
  Balance evened() const {
    Balance balance;
    double speeds = 0;
    for (const StageLimit& stage : stages_) speeds += stage.speed;
    int64_t first = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const double wanted = sums_[first] + (sums_.back() - sums_[first]) *
                                               stages_[s].speed / speeds;
      int64_t best = -1;
      for (int64_t cut = first + 1; cut <= last_[s][first]; ++cut) {
        if (!possible_[s + 1][cut]) continue;
        if (best < 0 ||
            std::abs(sums_[cut] - wanted) < std::abs(sums_[best] - wanted)) {
          best = cut;
        }
      }
      balance.push_back(best - first);
      first = best;
      speeds -= stages_[s].speed;
    }
    return balance;
  }

  static constexpr double kSlack = 1e-12;  // for rounding
  // Relative errors of the largest time, and the layers times stages from which
  // the coarse one is enough.
  static constexpr double kPrecise = 1e-9, kCoarse = 1e-4;
  static constexpr int64_t kLarge = 20000;

  const Blocks& blocks_;
  const std::vector<StageLimit>& stages_;
  const int64_t layers_;
  const std::vector<double> sums_;         // of the work
  std::vector<int64_t> farthest_;          // by stage
  std::vector<std::vector<Reach>> reach_;  // by stage and first layer
  std::vector<std::vector<char>> possible_;
  std::vector<std::vector<int64_t>> last_;
};

// If the most even cut needs so many times the memory, no other one is looked
// for.
constexpr double kHopeless = 4;

std::vector<StageLimit> stages_of(const Problem& problem,
                                  const Evaluator& evaluator) {
  std::vector<StageLimit> stages;
  for (const int rank : evaluator.rank_of_stage()) {
    stages.emplace_back().speed = problem.ranks[rank].speed;
  }
  return stages;
}

// Divides the memory of each rank between its stages, as in the cut `balance`.
// `where_needed`: whether a stage can be recomputed.
void limit_memory(const Problem& problem, const Blocks& blocks,
                  bool where_needed, Evaluator& evaluator,
                  const Balance& balance, std::vector<StageLimit>& stages) {
  const StageTable table =
      stage_table(problem, blocks, evaluator.rank_of_stage(), balance);
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const auto& own = evaluator.stages_of(static_cast<int>(r));
    double all = 0;
    for (std::size_t k = 0; k < own.size(); ++k) {
      StageLimit& stage = stages[own[k]];
      // A stage with one micro-batch in flight takes less if it is not
      // recomputed: then it needs no input.
      for (const bool recomputed : {true, false}) {
        if (recomputed && !where_needed) continue;
        stage.ways.push_back(moments_of_stage(
            evaluator.held(static_cast<int>(r), recomputed), k));
      }
      stage.bytes = peak_bytes(stage.ways[0], {own[k]}, table);
      all += stage.bytes;
    }
    for (const int s : own) {
      StageLimit& stage = stages[s];
      const double limit = problem.ranks[r].memory_bytes;
      const bool shares = own.size() > 1 && all > 0 && !std::isinf(limit);
      stage.bytes = shares ? stage.bytes / all * limit : limit;
    }
  }
}

// Returns the most even cut, without regard to memory.
Balance even_cut(const Blocks& blocks, const std::vector<double>& work,
                 const std::vector<StageLimit>& stages) {
  const bool equal = std::ranges::all_of(stages, [&](const StageLimit& each) {
    return each.speed == stages[0].speed;
  });
  if (equal) return balance_cost(work, std::ssize(stages));
  return *bottleneck_cut(blocks, work, stages);
}

}  // namespace

std::optional<Balance> bottleneck_cut(const Blocks& blocks,
                                      const std::vector<double>& work,
                                      const std::vector<StageLimit>& stages) {
  return Bottleneck(blocks, work, stages).cut();
}

std::vector<Balance> starting_cuts(const Problem& problem,
                                   const Candidate& candidate,
                                   const Blocks& blocks, Evaluator& evaluator) {
  const std::vector<double> work = layer_work(problem, candidate);
  std::vector<StageLimit> stages = stages_of(problem, evaluator);
  std::vector<Balance> cuts = {even_cut(blocks, work, stages)};
  const double fullness = has_limits(problem) ? evaluator.fullness(cuts[0]) : 0;
  const auto leanest_cut = [&](std::size_t calls) {
    return refine(
        cuts[0],
        [&](const Balance& balance) { return evaluator.fullness(balance); },
        {static_cast<int64_t>(calls)});
  };
  if (fullness > 1 && candidate.offload) {
    // What a rank holds depends on times, so that no limit of a block is known.
    constexpr std::size_t kActions = 1'000'000;  // about a second
    if (fullness < kHopeless) {
      cuts.push_back(leanest_cut(
          std::min<std::size_t>(kLeanestCuts, kActions / evaluator.actions())));
    }
  } else if (fullness > 1) {
    limit_memory(problem, blocks, candidate.recompute == kWhereNeeded,
                 evaluator, cuts[0], stages);
    const auto within = bottleneck_cut(blocks, work, stages);
    if (within) {
      cuts.push_back(*within);
    } else if (candidate.stages_per_rank == 1) {
      return cuts;  // no cut fits
    } else if (fullness < kHopeless) {
      cuts.push_back(leanest_cut(kLeanestCuts));
    }
  }
  return cuts;
}

std::vector<Balance> cuts_by_pass(const Problem& problem, const Blocks& blocks,
                                  const Evaluator& evaluator) {
  const std::vector<StageLimit> stages = stages_of(problem, evaluator);
  std::vector<Balance> cuts;
  for (const auto pass : {&Layer::forward, &Layer::backward}) {
    std::vector<double> work;
    for (const Layer& layer : blocks.workload().layers) {
      work.push_back(layer.*pass);
    }
    cuts.push_back(even_cut(blocks, work, stages));
  }
  return cuts;
}

}  // namespace gpipe::balancing::planner
