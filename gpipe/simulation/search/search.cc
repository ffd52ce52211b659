#include "gpipe/simulation/search/search.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

bool is_same_cell(const Action& a, const Action& b) {
  return a.stage == b.stage && a.microbatch == b.microbatch;
}

bool is_reload(const Block& step) {
  return step.first.kind == ActionKind::kReload;
}

// Returns whether two steps have actions of one micro-batch on one stage. The
// order of such steps is fixed.
bool share_cell(const Block& x, const Block& y) {
  return is_same_cell(x.first, y.first) ||
         (x.is_pair() && is_same_cell(x.second, y.first)) ||
         (y.is_pair() && (is_same_cell(x.first, y.second) ||
                          (x.is_pair() && is_same_cell(x.second, y.second))));
}

// One local search.
class Search {
 public:
  Search(const Problem& problem, const Order& order, uint64_t seed)
      : problem_(problem), stopwatch_(problem), now_(order), random_(seed) {
    stopwatch_.run(now_, &times_);
    follow_critical_path();
  }

  // Returns the shortest order found by simulating `budget` moves.
  Order best(int budget) {
    const double bound = problem_.lower_bound();
    Order best = now_;
    double least = times_.makespan;
    std::vector<double> late(kLate, least);
    // Many proposals are not possible and do not count as moves. This limits
    // their number too.
    int64_t proposals = 16 * static_cast<int64_t>(budget);
    for (int k = 0; k < budget && proposals > 0 && least > bound;) {
      --proposals;
      if (!propose()) continue;
      double& before = late[size(k) % kLate];
      ++k;
      const bool accepted =
          stopwatch_.run(now_, &next_) && fits(next_, problem_) &&
          (next_.makespan <= times_.makespan || next_.makespan <= before);
      if (accepted) {
        std::swap(times_, next_);
        follow_critical_path();
        if (times_.makespan < least) {
          least = times_.makespan;
          best = now_;
        }
      } else {
        undo();
      }
      before = std::min(before, times_.makespan);
    }
    return best;
  }

 private:
  static constexpr std::size_t kLate = 100;
  static constexpr std::size_t kMostAhead = 4;

  // ---- Critical path

  // Sets `path_` to the steps of one critical path, from the last to the first.
  void follow_critical_path() {
    path_.clear();
    Position here;
    for (int r = 0; r < problem_.ranks; ++r) {
      const auto& times = times_.ranks[r];
      if (times.empty() || times.back().end < times_.makespan) continue;
      here = {r, static_cast<int>(times.size()) - 1};
      break;
    }
    while (here.rank >= 0 && here.position >= 0) {
      path_.push_back(here);
      const auto& times = times_.ranks[here.rank];
      const BlockTime& time = times[here.position];
      if (time.start > time.ready || time.last.rank < 0) {
        --here.position;  // the previous step of its rank
      } else {
        here = time.last;
      }
    }
  }

  // ---- Moves

  // Returns a random number below `count`.
  std::size_t draw(std::size_t count) { return random_() % count; }

  // Makes a random change of `now_` on one rank, after which it still fits.
  // Returns false, without a change, if the drawn move is not possible.
  bool propose() {
    Position here = path_[draw(path_.size())];
    if (draw(8) == 0) {  // off the critical path, to prepare later moves
      here.rank = static_cast<int>(draw(now_.ranks.size()));
      here.position = static_cast<int>(draw(now_.ranks[here.rank].size()));
    }
    rank_ = size(here.rank);
    steps_ = now_.ranks[rank_];
    changed_cell_ = -1;
    const auto k = size(here.position);
    const bool changed = draw(6) == 0 ? change(k) : shift(k);
    if (!changed) return false;
    // If the rank has copies, what it holds depends on their times.
    if ((problem_.may_offload && has_copies(now_, here.rank)) ||
        peak_bytes(now_, here.rank, problem_) <= problem_.limit[rank_]) {
      return true;
    }
    undo();
    return false;
  }

  // Undoes the last move.
  void undo() {
    std::swap(now_.ranks[rank_], steps_);
    if (changed_cell_ >= 0) now_.modes[changed_cell_] = mode_before_;
  }

  // Moves the step at `from` on its rank, as near as possible to a drawn place.
  // Returns false if it does not move.
  bool shift(std::size_t from) {
    auto& steps = now_.ranks[rank_];
    const std::size_t reach =
        draw(2) == 0 ? 1 : 1 + draw(draw(4) == 0 ? steps.size() : 8);
    std::size_t to = from;
    if (draw(2) == 0) {
      while (to + 1 < steps.size() && to < from + reach &&
             may_swap(from, to + 1)) {
        ++to;
      }
      std::rotate(steps.begin() + from, steps.begin() + from + 1,
                  steps.begin() + to + 1);
    } else {
      while (to > 0 && from < to + reach && may_swap(to - 1, from)) --to;
      std::rotate(steps.begin() + to, steps.begin() + from,
                  steps.begin() + from + 1);
    }
    return to != from;
  }

  // Returns whether steps a < b of `rank_` may change their order. All inputs
  // of b arrive before a ends, so b does not depend on a through other ranks,
  // and the swap makes no deadlock. (If an input of b arrives later, b would
  // not begin earlier, so the swap would gain nothing.)
  bool may_swap(std::size_t a, std::size_t b) const {
    const auto& steps = steps_;
    if (share_cell(steps[a], steps[b])) return false;
    // No other rank waits for an L.
    if (is_reload(steps[a]) || is_reload(steps[b])) return true;
    const auto& times = times_.ranks[rank_];
    return times[b].ready < times[a].end;
  }

  // Changes the kind of a step, not its place: pairs or separates, splits or
  // merges, or changes the mode of its cell. Returns false if that is not
  // possible.
  bool change(std::size_t k) {
    const Block& step = steps_[k];
    if (step.is_pair() || (problem_.durations.overlap > 0 && draw(2) == 0)) {
      return step.is_pair() ? part(k) : pair(k);
    }
    switch (step.first.kind) {
      case ActionKind::kBackward:
        if (problem_.may_split && draw(2) == 0) return split(k);
        return change_mode(step.first);
      case ActionKind::kBackwardInput:
        if (draw(2) == 0) return merge(k);
        return change_mode(step.first);
      case ActionKind::kBackwardWeight:
        return false;
      default:
        return change_mode(step.first);
    }
  }

  // Makes two steps of a pair.
  bool part(std::size_t k) {
    auto& steps = now_.ranks[rank_];
    const Action second = steps[k].second;
    steps[k].first.fused_with_next = false;
    steps.insert(steps.begin() + k + 1, {second, {}});
    return true;
  }

  // Makes a pair of step k and the next one.
  bool pair(std::size_t k) {
    auto& steps = now_.ranks[rank_];
    if (k + 1 == steps.size() || steps[k + 1].is_pair()) return false;
    const Action a = steps[k].first, b = steps[k + 1].first;
    if (!may_overlap(a.kind, b.kind) || a.microbatch == b.microbatch ||
        !may_swap(k, k + 1)) {
      return false;
    }
    steps[k].first.fused_with_next = true;
    steps[k].second = b;
    steps.erase(steps.begin() + k + 1);
    return true;
  }

  // Replaces a B by an I with its W right after it.
  bool split(std::size_t k) {
    auto& steps = now_.ranks[rank_];
    Action& action = steps[k].first;
    action.kind = ActionKind::kBackwardInput;
    Action weight = action;
    weight.kind = ActionKind::kBackwardWeight;
    steps.insert(steps.begin() + k + 1, {weight, {}});
    return true;
  }

  // Replaces an I by a B, and removes its W.
  bool merge(std::size_t k) {
    auto& steps = now_.ranks[rank_];
    Action weight = steps[k].first;
    weight.kind = ActionKind::kBackwardWeight;
    steps[k].first.kind = ActionKind::kBackward;
    steps.erase(find(weight));
    return true;
  }

  // Gives the cell of `action` another mode that its stage allows. A recompute
  // comes right before the backward, an L up to kMostAhead steps before it.
  bool change_mode(const Action& action) {
    const int cell = problem_.cell(action);
    CellMode& mode = now_.modes[cell];
    CellMode others[2];
    std::size_t count = 0;
    for (const CellMode other :
         {CellMode::kKeep, CellMode::kRecompute, CellMode::kOffload}) {
      if (other != mode && problem_.allows(other, action.stage)) {
        others[count++] = other;
      }
    }
    if (count == 0) return false;
    changed_cell_ = cell;
    mode_before_ = mode;
    auto& steps = now_.ranks[rank_];
    Action added = action;
    added.fused_with_next = false;
    if (mode != CellMode::kKeep) {
      added.kind = mode == CellMode::kRecompute ? ActionKind::kRecompute
                                                : ActionKind::kReload;
      steps.erase(find(added));
    }
    mode = others[count == 1 ? 0 : draw(count)];
    if (mode == CellMode::kKeep) return true;
    auto place = std::ranges::find_if(steps, [&](const Block& step) {
      const auto is_it = [&](const Action& a) {
        return begins_backward(a.kind) && is_same_cell(a, action);
      };
      return is_it(step.first) || (step.is_pair() && is_it(step.second));
    });
    added.kind = ActionKind::kRecompute;
    if (mode == CellMode::kOffload) {
      added.kind = ActionKind::kReload;
      for (std::size_t ahead = draw(kMostAhead + 1); ahead > 0; --ahead) {
        if (share_cell(*std::prev(place), {added, {}})) break;
        --place;
      }
    }
    steps.insert(place, {added, {}});
    return true;
  }

  // Returns the step of `rank_` whose first action is `action`.
  std::vector<Block>::iterator find(const Action& action) {
    auto& steps = now_.ranks[rank_];
    return std::ranges::find_if(steps, [&](const Block& step) {
      return step.first.kind == action.kind && is_same_cell(step.first, action);
    });
  }

  const Problem& problem_;
  OrderSimulator stopwatch_;
  Order now_;
  Times times_, next_;
  std::vector<Position> path_;
  std::mt19937_64 random_;

  // For undo(): the changed rank, its steps before the change, and the cell
  // whose mode has changed (-1: none), with its mode before.
  std::size_t rank_ = 0;
  std::vector<Block> steps_;
  int changed_cell_ = -1;
  CellMode mode_before_ = CellMode::kKeep;
};

}  // namespace

Order improved(const Problem& problem, const Order& order, int budget,
               uint64_t seed) {
  return Search(problem, order, seed).best(budget);
}

}  // namespace gpipe::internal
