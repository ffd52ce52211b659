#include "gpipe/schedule/order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe::internal {

Needs needs(const Action& action) {
  const int stage = action.stage, i = action.microbatch;
  // In a schedule that is not validated, stage - 1 or stage + 1 may overflow.
  const bool has_before = stage > std::numeric_limits<int>::min();
  const bool has_after = stage < std::numeric_limits<int>::max();
  Needs needs;
  switch (action.kind) {
    case ActionKind::kForward:
      if (has_before) needs.add(stage - 1, ActionKind::kForward, i);
      break;
    case ActionKind::kRecompute:
      needs.add(stage, ActionKind::kForward, i);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      needs.add(stage, ActionKind::kForward, i);
      needs.add(stage, ActionKind::kRecompute, i);
      needs.add(stage, ActionKind::kReload, i);
      if (!has_after) break;
      needs.add(stage + 1, ActionKind::kBackward, i);
      needs.add(stage + 1, ActionKind::kBackwardInput, i);
      break;
    case ActionKind::kBackwardWeight:
      needs.add(stage, ActionKind::kBackwardInput, i);
      break;
    case ActionKind::kOffload:
      needs.add(stage, ActionKind::kForward, i);
      needs.add(stage, ActionKind::kRecompute, i);
      break;
    case ActionKind::kReload:
      needs.add(stage, ActionKind::kOffload, i);
      break;
  }
  return needs;
}

}  // namespace gpipe::internal

namespace gpipe {
namespace {

constexpr int kNobody = -1;

// A simulation of a schedule in which every action takes one tick.
class TickRun {
 public:
  explicit TickRun(const Schedule& schedule)
      : schedule_(schedule), ticks_(schedule.ranks.size()) {
    for (const auto& actions : schedule.ranks) {
      for (const Action& action : actions) slot(action).present = true;
    }
  }

  std::vector<std::vector<int64_t>> ticks() {
    const int ranks = static_cast<int>(schedule_.ranks.size());
    next_waiting_.assign(ranks, kNobody);
    // Each rank runs until it has to wait. Then it is in the list of ranks that
    // wait for an action, until that action ends.
    for (int rank = ranks - 1; rank >= 0; --rank) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const int rank = runnable_.back();
      runnable_.pop_back();
      while (run_block(rank)) {
      }
    }
    return std::move(ticks_);
  }

 private:
  struct Slot {
    bool present = false;        // whether the action is in the schedule
    std::optional<int64_t> end;  // set when the action has run
    // Head of the linked list of ranks that wait for the action. The other
    // ranks are in `next_waiting_`.
    int waiting = kNobody;
    // The first action of the block in which run_block() last saw the action.
    const Action* block = nullptr;
  };

  // Returns the slot of an action, which it makes at the first call.
  Slot& slot(const Action& action) {
    return cells_[key(action)][static_cast<std::size_t>(action.kind)];
  }
  Slot* find(const Action& action) {
    const auto found = cells_.find(key(action));
    if (found == cells_.end()) return nullptr;
    Slot& slot = found->second[static_cast<std::size_t>(action.kind)];
    return slot.present ? &slot : nullptr;
  }
  static uint64_t key(const Action& action) {
    return static_cast<uint64_t>(static_cast<uint32_t>(action.stage)) << 32 |
           static_cast<uint32_t>(action.microbatch);
  }

  // Runs the next action, or block, of the rank. Returns false if there is none
  // or if it has to wait.
  bool run_block(int rank) {
    const auto& actions = schedule_.ranks[rank];
    auto& ticks = ticks_[rank];
    const std::size_t begin = ticks.size();
    if (begin == actions.size()) return false;
    const std::size_t end = internal::block_end(actions, begin);
    const Action* block = &actions[begin];
    int64_t start = begin == 0 ? 0 : ticks.back() + 1;
    for (std::size_t k = begin; k < end; ++k) {
      for (const Action& need : internal::needs(actions[k])) {
        Slot* needed = find(need);
        // A block does not wait for its own earlier actions.
        if (needed == nullptr || needed->block == block) continue;
        if (!needed->end.has_value()) {
          next_waiting_[rank] = std::exchange(needed->waiting, rank);
          return false;
        }
        start = std::max(start, *needed->end);
      }
      slot(actions[k]).block = block;
    }
    for (std::size_t k = begin; k < end; ++k) {
      ticks.push_back(start++);
      Slot& done = slot(actions[k]);
      if (!done.end.has_value()) done.end = start;
      int waiting = std::exchange(done.waiting, kNobody);
      while (waiting != kNobody) {
        runnable_.push_back(waiting);
        waiting = std::exchange(next_waiting_[waiting], kNobody);
      }
    }
    return true;
  }

  const Schedule& schedule_;
  std::unordered_map<uint64_t, std::array<Slot, internal::kActionKinds>> cells_;
  std::vector<int> runnable_, next_waiting_;
  std::vector<std::vector<int64_t>> ticks_;
};

}  // namespace

std::vector<std::vector<int64_t>> start_ticks(const Schedule& schedule) {
  return TickRun(schedule).ticks();
}

std::vector<std::vector<int64_t>> clock_order(const Schedule& schedule) {
  auto positions = start_ticks(schedule);
  const auto ranks = std::ssize(schedule.ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto& actions = schedule.ranks[rank];
    const std::size_t done = positions[rank].size();
    if (done < actions.size()) {
      internal::refuse(
          "the schedule cannot be executed: ", to_string(actions[done]),
          " of rank ", rank, " waits for an action that never ends");
    }
    for (int64_t& position : positions[rank])
      position = position * ranks + rank;
  }
  return positions;
}

}  // namespace gpipe
