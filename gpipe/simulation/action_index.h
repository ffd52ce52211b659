// Numbers for the actions of a schedule, as indices of dense arrays.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// A map from actions to numbers below size(). It has a number for every
// combination of a stage, a micro-batch and a kind that occur in the schedule,
// also for combinations that do not occur. Actions of one stage and micro-batch
// have consecutive numbers.
class ActionIndex {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // Throws std::invalid_argument if a stage or micro-batch is negative, or if
  // stages times micro-batches are far more than the actions (see most_cells()
  // in schedule/gaps.h).
  // `ranks`: lists of actions, spans or host copies.
  template <typename Ranks>
  explicit ActionIndex(const Ranks& ranks) {
    std::size_t actions = 0;
    for (const auto& rank : ranks) {
      for (const auto& entry : rank) include(action_of(entry));
      actions += rank.size();
    }
    number(actions);
  }

  std::size_t size() const { return size_; }
  // Returns one more than the largest stage.
  std::size_t stages() const { return static_cast<std::size_t>(stages_); }

  // Returns the number of `action`; kNone if it cannot be in the schedule.
  std::size_t find(const Action& action) const {
    const int column = columns_[static_cast<std::size_t>(action.kind)];
    if (column < 0 || action.stage < 0 || action.stage >= stages_ ||
        action.microbatch < 0 || action.microbatch >= microbatches_) {
      return kNone;
    }
    const int64_t cell = action.stage * microbatches_ + action.microbatch;
    return static_cast<std::size_t>(cell) * kinds_ +
           static_cast<std::size_t>(column);
  }

 private:
  static const Action& action_of(const Action& action) { return action; }
  template <typename Entry>
  static const Action& action_of(const Entry& entry) {
    return entry.action;
  }
  void include(const Action& action);
  void number(std::size_t actions);

  int64_t stages_ = 0, microbatches_ = 0;
  std::size_t kinds_ = 0, size_ = 0;
  std::array<int, kActionKinds> columns_ = {-1, -1, -1, -1, -1, -1, -1};
};

// A table with an entry for each action of the ranks of a schedule or of a
// timeline. T: not bool.
template <typename T>
class ActionTable {
 public:
  // Throws as ActionIndex().
  template <typename Ranks>
  explicit ActionTable(const Ranks& ranks)
      : index_(ranks), entries_(index_.size()) {}

  std::size_t size() const { return entries_.size(); }
  // Returns one more than the largest stage.
  std::size_t stages() const { return index_.stages(); }

  // Returns the entry of an action of the ranks.
  T& operator[](const Action& action) { return entries_[index_.find(action)]; }

  // Returns the entry of any action; T() if there is none.
  T get(const Action& action) const {
    const std::size_t found = index_.find(action);
    return found == ActionIndex::kNone ? T() : entries_[found];
  }

 private:
  ActionIndex index_;
  std::vector<T> entries_;
};

}  // namespace gpipe::internal
