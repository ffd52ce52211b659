#include "gpipe/schedule/validate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"

namespace gpipe {
namespace {

struct Place {
  std::size_t rank, position;

  friend std::ostream& operator<<(std::ostream& out, const Place& place) {
    return out << "rank " << place.rank << ", position " << place.position;
  }
};

// A finder of the first missing number from 0 to `count` - 1. At most `most`
// numbers will be seen, so the memory is O(most), however large `count` is.
class Missing {
 public:
  Missing(int64_t count, int64_t most) : seen_(std::min(count, most + 1)) {}

  void see(int64_t number) {
    if (number < std::ssize(seen_)) seen_[number] = true;
  }
  std::optional<int64_t> first() const {
    const auto found = std::ranges::find(seen_, false);
    if (found == seen_.end()) return std::nullopt;
    return found - seen_.begin();
  }

 private:
  std::vector<bool> seen_;
};

class Validation {
 public:
  explicit Validation(const Schedule& schedule) : schedule_(schedule) {}

  // Runs all checks. Each relies on the ones before it.
  void run() {
    check_numbers();
    check_gaps("stage", stages_, &Action::stage);
    check_gaps("micro-batch", microbatches_, &Action::microbatch);
    check_stages_on_ranks();
    check_forwards();
    check_doubles();
    check_backwards();
    check_offloads();
    check_order_on_ranks();
    check_blocks();
    check_deadlock();
  }

 private:
  void check_numbers() {
    for_each([&](const Action& action, Place place) {
      if (action.stage < 0 || action.microbatch < 0) {
        refuse(place, to_string(action), " (", place,
               ") has a negative number: stages and micro-batches are "
               "numbered from 0");
      }
      stages_ = std::max<int64_t>(stages_, action.stage + int64_t{1});
      microbatches_ =
          std::max<int64_t>(microbatches_, action.microbatch + int64_t{1});
      ++actions_;
    });
    if (actions_ == 0) {
      internal::refuse(
          "the schedule has no actions: it needs at least a forward");
    }
  }

  void check_gaps(const char* what, int64_t count, int Action::*number) {
    Missing numbers(count, actions_);
    for_each([&](const Action& action, Place) { numbers.see(action.*number); });
    const auto missing = numbers.first();
    if (!missing.has_value()) return;
    for_each([&](const Action& action, Place place) {
      if (action.*number <= *missing) return;
      refuse(place, "there is ", to_string(action), " (", place, "), but no ",
             what, " ", *missing, ": number them from 0 without a gap");
    });
  }

  // Throws if a stage is on two ranks. The stage belongs to the rank with most
  // of its actions, so that the error names the misplaced action and not the
  // others (majority vote of Boyer and Moore, 1991; without a majority it is
  // any of the ranks).
  void check_stages_on_ranks() {
    rank_of_.assign(stages_, 0);
    std::vector<int64_t> lead(stages_, 0);
    for_each([&](const Action& action, Place place) {
      if (lead[action.stage] == 0) rank_of_[action.stage] = place.rank;
      lead[action.stage] += rank_of_[action.stage] == place.rank ? 1 : -1;
    });
    for_each([&](const Action& action, Place place) {
      const std::size_t rank = rank_of_[action.stage];
      if (rank == place.rank) return;
      refuse(place, to_string(action), " (", place, ") is not on rank ", rank,
             " with the rest of stage ", action.stage,
             ": a stage is on one rank; move it there");
    });
  }

  void check_forwards() {
    Missing forwards(stages_ * microbatches_, actions_);
    for_each([&](const Action& action, Place) {
      if (action.kind != ActionKind::kForward) return;
      forwards.see(action.stage * microbatches_ + action.microbatch);
    });
    const auto missing = forwards.first();
    if (!missing.has_value()) return;
    const Action forward = {static_cast<int>(*missing / microbatches_),
                            ActionKind::kForward,
                            static_cast<int>(*missing % microbatches_)};
    for_each([&](const Action& action, Place place) {
      if (action.microbatch != forward.microbatch) return;
      refuse(place, to_string(forward), " is missing: there is ",
             to_string(action), " (", place,
             "), and every stage needs a forward of every micro-batch; add it "
             "to rank ",
             rank_of_[forward.stage]);
    });
  }

  void check_doubles() {
    places_.emplace(schedule_.ranks);
    for_each([&](const Action& action, Place place) {
      std::optional<Place>& known = (*places_)[action];
      if (known) {
        refuse(place, to_string(action), " comes twice, at positions ",
               known->position, " and ", place.position, " of rank ",
               place.rank, ": take one out");
      }
      known = place;
    });
  }

  void check_backwards() {
    using internal::has_kind;
    const bool trains = has_kind(schedule_, ActionKind::kBackward) ||
                        has_kind(schedule_, ActionKind::kBackwardInput) ||
                        has_kind(schedule_, ActionKind::kBackwardWeight);
    for (int stage = 0; stage < stages_; ++stage) {
      for (int i = 0; i < microbatches_; ++i) {
        if (trains) {
          check_backward(stage, i);
        } else {
          check_forward_alone(stage, i);
        }
      }
    }
  }

  void check_backward(int stage, int i) {
    const Action whole = {stage, ActionKind::kBackward, i};
    const Action input = {stage, ActionKind::kBackwardInput, i};
    const Action weight = {stage, ActionKind::kBackwardWeight, i};
    if (has(whole)) {
      for (const Action& part : {input, weight}) {
        if (!has(part)) continue;
        refuse(place(part), to_string(whole), " (", place(whole), ") and ",
               to_string(part), " (", place(part),
               ") are both there: a backward is whole (B) or in two parts (I "
               "and W); take out one or the other");
      }
    } else if (!has(input) && !has(weight)) {
      const Action forward = {stage, ActionKind::kForward, i};
      refuse(place(forward), to_string(whole),
             " is missing: ", to_string(forward), " (", place(forward),
             ") has no backward, but others do; add it, or ", to_string(input),
             " and ", to_string(weight));
    } else if (!has(input) || !has(weight)) {
      const auto& [present, missing] =
          has(input) ? std::pair(input, weight) : std::pair(weight, input);
      refuse(place(present), to_string(missing),
             " is missing: ", to_string(present), " (", place(present),
             ") is one part of a backward and needs the other; add it to rank ",
             rank_of_[stage]);
    }
  }

  void check_forward_alone(int stage, int i) {
    for (const ActionKind kind :
         {ActionKind::kRecompute, ActionKind::kOffload, ActionKind::kReload}) {
      const Action action = {stage, kind, i};
      if (!has(action)) continue;
      refuse(place(action), to_string(action), " (", place(action),
             ") is for a backward, and this schedule has none: take it out");
    }
  }

  void check_offloads() {
    for_each([&](const Action& action, Place here) {
      if (is_compute(action.kind)) return;
      const bool away = action.kind == ActionKind::kOffload;
      const Action other = {action.stage,
                            away ? ActionKind::kReload : ActionKind::kOffload,
                            action.microbatch};
      if (has(other)) return;
      refuse(here, to_string(other), " is missing: ", to_string(action), " (",
             here,
             away ? ") copies to the host what the backward needs; add the "
                    "copy back to rank "
                  : ") copies back what an offload copied to the host; add "
                    "the offload to rank ",
             here.rank);
    });
  }

  void check_order_on_ranks() {
    for_each([&](const Action& action, Place here) {
      for (const Action& need : internal::needs(action)) {
        if (need.stage != action.stage || !has(need)) continue;
        const Place there = place(need);
        if (there.position < here.position) continue;
        refuse(here, to_string(action), " (", here, ") comes before ",
               to_string(need), " (position ", there.position,
               "), which it needs: move it behind that");
      }
    });
  }

  void check_blocks() {
    for_each([&](const Action& action, Place here) {
      if (!action.fused_with_next) return;
      const auto& actions = schedule_.ranks[here.rank];
      if (here.position + 1 == actions.size()) {
        refuse(here, to_string(action), " (", here,
               ") makes a block with the next action, but is the last one of "
               "its rank: clear its fused_with_next");
      }
      const Action& next = actions[here.position + 1];
      if (next.fused_with_next) {
        refuse(here, to_string(next), " (rank ", here.rank, ", position ",
               here.position + 1,
               ") makes a block with both its neighbours: a block has two "
               "actions; clear a fused_with_next");
      }
      if (!is_overlap(action, next) &&
          !internal::is_late_recompute(action, next)) {
        refuse(
            here, to_string(action), " and ", to_string(next), " (", here,
            ") cannot be a block: a block is a forward and a backward of two "
            "micro-batches, or a recompute and its backward; clear the "
            "fused_with_next of ",
            to_string(action));
      }
    });
  }

  static bool is_overlap(const Action& a, const Action& b) {
    return a.microbatch != b.microbatch &&
           internal::may_overlap(a.kind, b.kind);
  }

  void check_deadlock() {
    const auto ticks = start_ticks(schedule_);
    std::vector<std::size_t> done;  // number of actions, of each rank
    for (const auto& ran : ticks) done.push_back(ran.size());
    std::size_t rank = 0;
    while (rank < done.size() && done[rank] == schedule_.ranks[rank].size()) {
      ++rank;
    }
    if (rank == done.size()) return;

    // Following what each rank waits for, from any stuck rank, ends in a cycle.
    std::vector<bool> seen(done.size(), false);
    const auto next = [&](std::size_t r) {
      return place(awaited(done, r)).rank;
    };
    for (; !seen[rank]; rank = next(rank)) seen[rank] = true;
    std::vector<std::size_t> circle = {rank};
    for (auto r = next(rank); r != rank; r = next(r)) circle.push_back(r);
    std::rotate(circle.begin(), std::ranges::min_element(circle), circle.end());

    constexpr std::size_t kTold = 8;
    std::ostringstream story;
    for (std::size_t k = 0; k < std::min(circle.size(), kTold); ++k) {
      const Place here = {circle[k], done[circle[k]]};
      const Action need = awaited(done, here.rank);
      if (k == 0) story << "rank " << here.rank;
      story << (k == 0 ? "" : ", which") << " waits at "
            << to_string(action_at(here)) << " (position " << here.position
            << ") for " << to_string(need) << " of rank " << place(need).rank
            << " (position " << place(need).position << ")";
    }
    if (circle.size() > kTold) {
      story << ", and so on over " << circle.size() << " ranks";
    }
    refuse({circle[0], done[circle[0]]}, "deadlock: ", story.str(),
           ": on one of these ranks, move what the others wait for ahead of "
           "where it waits");
  }

  // Returns the action that a rank waits for, if the rank is stuck after
  // `done[rank]` actions.
  Action awaited(const std::vector<std::size_t>& done, std::size_t rank) {
    const auto& actions = schedule_.ranks[rank];
    std::size_t end = done[rank];
    do {
      for (const Action& need : internal::needs(actions[end])) {
        if (!has(need)) continue;
        const Place there = place(need);
        const bool in_block = there.rank == rank && there.position < end;
        if (there.position >= done[there.rank] && !in_block) return need;
      }
    } while (actions[end++].fused_with_next);
    throw std::logic_error("rank " + std::to_string(rank) +
                           " of a schedule is stuck for no reason");
  }

  // Calls f(action, place) for all actions, rank by rank.
  template <typename F>
  void for_each(const F& f) const {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const auto& actions = schedule_.ranks[rank];
      for (std::size_t k = 0; k < actions.size(); ++k) {
        f(actions[k], Place{rank, k});
      }
    }
  }

  const Action& action_at(Place place) const {
    return schedule_.ranks[place.rank][place.position];
  }
  bool has(const Action& action) const {
    return places_->get(action).has_value();
  }
  Place place(const Action& action) const { return *places_->get(action); }

  template <typename... Parts>
  [[noreturn]] void refuse(Place where, const Parts&... parts) const {
    internal::refuse(parts..., '\n',
                     grid_around(schedule_, where.rank, where.position));
  }

  const Schedule& schedule_;
  int64_t actions_ = 0, stages_ = 0, microbatches_ = 0;
  std::vector<std::size_t> rank_of_;  // of each stage
  // Of each action. Set when all forwards are known to be present: then its
  // size is linear in the schedule.
  std::optional<internal::ActionTable<std::optional<Place>>> places_;
};

}  // namespace

void validate(const Schedule& schedule) { Validation(schedule).run(); }

}  // namespace gpipe
