#include "gpipe/simulation/search/list.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "gpipe/simulation/search/memory.h"

namespace gpipe::internal {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kUnknown = -1;

using Recompute = ListRule::Recompute;

// The last completed action of a micro-batch on a stage.
enum class Progress : char { kNone, kForward, kRecompute, kInput, kDone };

// The state of a micro-batch on a stage.
struct Cell {
  Progress progress = Progress::kNone;
  bool recomputed = false;
  // The times at which the input of F and the gradient for B or I arrive;
  // kUnknown if their producer has not been scheduled.
  double input = kUnknown, gradient = kUnknown;
};

// A check that the micro-batches of a rank can finish within its memory limit
// (banker's algorithm).
class Bank {
 public:
  Bank(const Problem& problem, const ListRule& rule)
      : problem_(problem), splits_(rule.splits) {
    for (int r = 0; r < problem.ranks; ++r) {
      if (rule.recompute == Recompute::kIfFull) {
        modes_.push_back(lean(problem, r, problem.limit[r]));
      } else {
        const std::vector<char> all(problem.stages_of[r].size(),
                                    rule.recompute == Recompute::kAlways);
        modes_.push_back({true, all, 0});
      }
    }
  }

  // The bytes of one micro-batch on a rank.
  struct Claim {
    double held = 0;
    // The most bytes that it takes in addition until it is done, in the order
    // that takes least: pending Ws, forwards, then backwards, each with its
    // recompute right before and its W right after it.
    double most = 0;
  };
  // Returns the bytes of micro-batch i on `rank`.
  Claim claim(const std::vector<Cell>& cells, int rank, int i) const {
    const auto& own = problem_.stages_of[rank];
    const auto& modes = modes_[rank].recomputed;
    Claim claim;
    double level = 0;
    const auto add = [&](double bytes) {
      level += bytes;
      claim.most = std::max(claim.most, level);
    };
    const auto cell_of = [&](std::size_t k) -> const Cell& {
      return cells[problem_.cell({own[k], ActionKind::kForward, i})];
    };
    const auto recomputed = [&](std::size_t k) {
      const Cell& cell = cell_of(k);
      return cell.progress == Progress::kNone ? modes[k] != 0 : cell.recomputed;
    };
    const auto full = [&](std::size_t k) {
      return problem_.activation[own[k]];
    };
    const auto kept = [&](std::size_t k) {
      return recomputed(k) ? problem_.input[own[k]] : 0;
    };
    for (std::size_t k = 0; k < own.size(); ++k) {
      const Progress progress = cell_of(k).progress;
      if (progress == Progress::kInput) {
        const double bytes = problem_.weight[own[k]] + kept(k);
        claim.held += bytes;
        add(-bytes);
      } else if (progress == Progress::kForward) {
        claim.held += recomputed(k) ? kept(k) : full(k);
      } else if (progress == Progress::kRecompute) {
        claim.held += kept(k) + full(k);
      }
    }
    for (std::size_t k = 0; k < own.size(); ++k) {
      if (cell_of(k).progress != Progress::kNone) continue;
      add(recomputed(k) ? kept(k) : full(k));
    }
    for (std::size_t k = own.size(); k-- > 0;) {
      const Progress progress = cell_of(k).progress;
      if (progress >= Progress::kInput) continue;
      if (recomputed(k) && progress != Progress::kRecompute) add(full(k));
      if (splits_) add(problem_.weight[own[k]] - full(k));
      add(-kept(k) - (splits_ ? problem_.weight[own[k]] : full(k)));
    }
    return claim;
  }

  // Returns whether micro-batches first..last of `rank` can finish in this
  // order. Other micro-batches hold no memory.
  bool is_safe(const std::vector<Cell>& cells, int rank, int first,
               int last) const {
    const double limit = problem_.limit[rank];
    if (limit == kInfinite) return true;
    std::vector<Claim> claims;
    double held = problem_.resident[rank];
    for (int i = first; i <= last; ++i) {
      claims.push_back(claim(cells, rank, i));
      held += claims.back().held;
    }
    // peak_bytes() adds up in another order, and rounding must not stop the
    // oldest micro-batch. The caller's check with fits() catches an order that
    // exceeds the limit by this tolerance.
    const double most = limit + 1e-9 * std::abs(limit);
    for (const Claim& claim : claims) {
      if (held + claim.most > most) return false;
      held -= claim.held;
    }
    return true;
  }

  // Returns whether every rank can run a single micro-batch.
  bool can_begin() const {
    const std::vector<Cell> cells(size(problem_.cells()));
    for (int r = 0; r < problem_.ranks; ++r) {
      if (!modes_[r].fits || !is_safe(cells, r, 0, 0)) return false;
    }
    return true;
  }

 private:
  const Problem& problem_;
  const bool splits_;
  std::vector<Lean> modes_;  // of each rank, for forwards not yet scheduled
};

// The next action of a rank.
struct Choice {
  Action action;
  bool recomputed = false;   // only for a forward
  double start = kInfinite;  // seconds; infinite: there is no action
};

// One run of list_schedule().
class ListScheduling {
 public:
  ListScheduling(const Problem& problem, const ListRule& rule)
      : problem_(problem),
        rule_(rule),
        bank_(problem, rule),
        cells_(size(problem.cells())),
        stages_(size(problem.stages)),
        free_(size(problem.ranks)),
        link_free_(problem.links) {
    order_.ranks.resize(size(problem.ranks));
    for (int i = 0; i < problem.microbatches; ++i) {
      cell({0, ActionKind::kForward, i}).input = 0;
    }
    set_times();
  }

  // Returns the order, or nullopt if the rule needs more memory than the
  // limits. Of the next actions of all ranks, the one that starts first is
  // always scheduled next, so no later one can start before it.
  std::optional<Order> run() {
    if (!bank_.can_begin()) return std::nullopt;
    std::vector<Choice> choices;
    for (int r = 0; r < problem_.ranks; ++r) choices.push_back(choose(r));
    while (true) {
      const auto next = std::ranges::min_element(choices, {}, &Choice::start);
      if (next->start == kInfinite) break;
      const Action action = next->action;
      commit(*next);
      for (int s = action.stage - 1; s <= action.stage + 1; ++s) {
        if (s < 0 || s >= problem_.stages) continue;
        const int rank = problem_.rank_of[s];
        choices[rank] = choose(rank);
      }
    }
    for (const Cell& cell : cells_) {
      if (cell.progress != Progress::kDone) return std::nullopt;
      order_.modes.push_back(cell.recomputed ? CellMode::kRecompute
                                             : CellMode::kKeep);
    }
    return std::move(order_);
  }

 private:
  // The state of a stage: the next micro-batch of each kind. A recompute is
  // always for the next B or I.
  struct Stage {
    int forward = 0, backward = 0, weight = 0;
    // The planned times of micro-batch 0; see ListRule::spacing.
    double forward_time = 0, backward_time = 0;
  };

  Cell& cell(const Action& action) { return cells_[problem_.cell(action)]; }

  double seconds(int stage, ActionKind kind) const {
    return problem_.durations.of({stage, kind, 0});
  }
  ActionKind gradient_kind() const {
    return rule_.splits ? ActionKind::kBackwardInput : ActionKind::kBackward;
  }

  void set_times() {
    double time = 0;
    for (int s = 0; s < problem_.stages; ++s) {
      const Route& route = problem_.durations.forward[s];
      stages_[s].forward_time = time;
      time += seconds(s, ActionKind::kForward) + route.wire + route.delay;
    }
    for (int s = problem_.stages; s-- > 0;) {
      const Route& route = problem_.durations.backward[s];
      stages_[s].backward_time = time;
      time += seconds(s, gradient_kind()) + route.wire + route.delay;
    }
    double busiest = 0;
    for (const auto& own : problem_.stages_of) {
      double work = 0;
      for (const int s : own) {
        work += seconds(s, ActionKind::kForward) + seconds(s, gradient_kind());
        if (rule_.splits) work += seconds(s, ActionKind::kBackwardWeight);
      }
      busiest = std::max(busiest, work);
    }
    spacing_ = rule_.spacing * busiest;
  }

  double time_of(const Action& action) const {
    const Stage& stage = stages_[action.stage];
    return action.microbatch * spacing_ + (action.kind == ActionKind::kForward
                                               ? stage.forward_time
                                               : stage.backward_time);
  }

  // Returns whether all micro-batches of `rank` could finish if `cell` had this
  // progress. `cell` is changed only during the call.
  bool would_be_safe(int rank, Cell* cell, Progress progress, bool recomputed) {
    const Cell before = *cell;
    cell->progress = progress;
    cell->recomputed = recomputed;
    int first = problem_.microbatches, last = 0;
    for (const int s : problem_.stages_of[rank]) {
      const Stage& stage = stages_[s];
      first = std::min(first, rule_.splits ? stage.weight : stage.backward);
      last = std::max(last, std::min(stage.forward, problem_.microbatches - 1));
    }
    const bool safe = bank_.is_safe(cells_, rank, first, last);
    *cell = before;
    return safe;
  }

  // Returns the next action of a free rank; its start is infinite if there is
  // none.
  Choice choose(int rank) {
    std::vector<Choice> wanted;  // others wait for these
    Choice filler;
    const double free = free_[rank];
    const auto fill = [&](const Action& action) {
      if (filler.start == kInfinite) filler = {action, false, free};
    };
    const auto want = [&](const Action& action, double ready) {
      wanted.push_back({action, false, std::max(free, ready)});
    };
    for (const int s : problem_.stages_of[rank]) {
      const Stage& stage = stages_[s];
      if (stage.weight < stage.backward) {
        fill({s, ActionKind::kBackwardWeight, stage.weight});
      }
      if (stage.forward < problem_.microbatches) {
        add_forward({s, ActionKind::kForward, stage.forward}, rank, &wanted);
      }
      if (stage.backward == stage.forward) continue;
      const Action backward = {s, gradient_kind(), stage.backward};
      const Action recompute = {s, ActionKind::kRecompute, stage.backward};
      Cell& own = cell(backward);
      const bool known = s + 1 == problem_.stages || own.gradient != kUnknown;
      if (!own.recomputed || own.progress == Progress::kRecompute) {
        if (known) want(backward, own.gradient);
      } else if (would_be_safe(rank, &own, Progress::kRecompute, true)) {
        known ? want(recompute, own.gradient - problem_.durations.of(recompute))
              : fill(recompute);
      }
    }
    return best_of(wanted, filler);
  }

  void add_forward(const Action& action, int rank,
                   std::vector<Choice>* wanted) {
    Cell& own = cell(action);
    if (own.input == kUnknown) return;
    const double start = std::max(free_[rank], own.input);
    if (rule_.recompute != Recompute::kAlways &&
        would_be_safe(rank, &own, Progress::kForward, false)) {
      wanted->push_back({action, false, start});
    } else if (rule_.recompute != Recompute::kNever &&
               would_be_safe(rank, &own, Progress::kForward, true)) {
      wanted->push_back({action, true, start});
    }
  }

  Choice best_of(const std::vector<Choice>& wanted,
                 const Choice& filler) const {
    double until = kInfinite;  // latest start of a candidate
    for (const Choice& choice : wanted) {
      const double wait =
          rule_.waits ? problem_.durations.of(choice.action) : 0;
      until = std::min(until, choice.start + wait);
    }
    Choice best;
    double best_time = kInfinite;
    for (const Choice& choice : wanted) {
      const double time = time_of(choice.action);
      if (choice.start > until || time >= best_time) continue;
      best = choice;
      best_time = time;
    }
    if (filler.start == kInfinite) return best;
    const double gap = best.start - filler.start;
    const double fits = rule_.filler * problem_.durations.of(filler.action);
    return gap > 0 && gap >= fits ? filler : best;
  }

  void commit(const Choice& choice) {
    const Action& action = choice.action;
    const auto rank = size(problem_.rank_of[action.stage]);
    Stage& stage = stages_[action.stage];
    Cell& own = cell(action);
    const double end = choice.start + problem_.durations.of(action);
    free_[rank] = end;
    order_.ranks[rank].push_back({action, {}});
    switch (action.kind) {
      case ActionKind::kForward:
        ++stage.forward;
        own.progress = Progress::kForward;
        own.recomputed = choice.recomputed;
        if (action.stage + 1 < problem_.stages) {
          cell({action.stage + 1, action.kind, action.microbatch}).input =
              copied(problem_.durations.forward[action.stage], end);
        }
        break;
      case ActionKind::kRecompute:
        own.progress = Progress::kRecompute;
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        ++stage.backward;
        own.progress = rule_.splits ? Progress::kInput : Progress::kDone;
        if (!rule_.splits) ++stage.weight;
        if (action.stage > 0) {
          cell({action.stage - 1, action.kind, action.microbatch}).gradient =
              copied(problem_.durations.backward[action.stage], end);
        }
        break;
      default:  // kBackwardWeight; there is no O and no L to choose
        ++stage.weight;
        own.progress = Progress::kDone;
        break;
    }
  }

  double copied(const Route& route, double end) {
    if (route.link < 0) return end;
    double& free = link_free_[route.link];
    free = std::max(end, free) + route.wire;
    return free + route.delay;
  }

  const Problem& problem_;
  const ListRule rule_;
  const Bank bank_;
  double spacing_ = 0;
  std::vector<Cell> cells_;
  std::vector<Stage> stages_;
  std::vector<double> free_, link_free_;
  Order order_;
};

}  // namespace

std::optional<Order> list_schedule(const Problem& problem,
                                   const ListRule& rule) {
  return ListScheduling(problem, rule).run();
}

}  // namespace gpipe::internal
