// A pipeline schedule as data: the actions of every rank, in their order, and
// questions about them. Does not depend on LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

// The kind of work that an action does for one micro-batch on one stage.
enum class ActionKind {
  kForward,         // F
  kBackward,        // B: the whole backward
  kBackwardInput,   // I: the part that gives the gradients of the stage's input
  kBackwardWeight,  // W: the part that gives the gradients of the parameters
  kRecompute,       // R: repeats the forward of a checkpointed micro-batch
  kOffload,         // O: copies what is kept for the backward to the host
  kReload,          // L: copies it back to the device
};

// Returns whether `kind` is computation. O and L are copies, which run beside
// the computation of their rank.
constexpr bool is_compute(ActionKind kind) {
  return kind != ActionKind::kOffload && kind != ActionKind::kReload;
}

namespace internal {

// Returns whether `kind` is B or I, which other stages wait for.
constexpr bool begins_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}

// Returns whether one kind is F and the other one is B or I, which may overlap
// in a block.
constexpr bool may_overlap(ActionKind a, ActionKind b) {
  return (a == ActionKind::kForward && begins_backward(b)) ||
         (begins_backward(a) && b == ActionKind::kForward);
}

// The letters of the kinds, in the order of ActionKind.
inline constexpr std::string_view kKindLetters = "FBIWROL";

// The number of kinds, for tables with an entry per kind.
inline constexpr std::size_t kActionKinds = kKindLetters.size();

// Returns 'F', 'B', 'I', 'W', 'R', 'O' or 'L'.
constexpr char letter_of(ActionKind kind) {
  return kKindLetters[static_cast<std::size_t>(kind)];
}

}  // namespace internal

// One entry of a schedule: one kind of work for one micro-batch on one stage.
struct Action {
  int stage = 0;
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;

  // True if this action and the next one of its rank form a block. Neither
  // begins before the inputs that both need from other ranks have arrived.
  // There are two sorts of blocks:
  // - a forward and a backward: DualPipe's overlapped pair;
  // - a recompute and its backward: a late recompute, which waits for the
  //   gradient.
  bool fused_with_next = false;

  friend bool operator==(const Action&, const Action&) = default;
};

// Returns the action in the notation of torch.distributed.pipelining: "2F0" is
// stage 2, forward, micro-batch 0. The text does not contain `fused_with_next`.
std::string to_string(const Action& action);

// The actions of all ranks: `ranks[r]` lists those of rank r, which runs them
// one after the other. O and L only begin a copy at their place in the list;
// the rank goes on beside the copy. An action waits for the actions that it
// needs (order.h). Ranks synchronize in no other way.
struct Schedule {
  std::vector<std::vector<Action>> ranks;
};

// ---- Stages and their ranks

// A rule that places several stages on each of n ranks.
enum class Placement {
  kLoop,  // stage s on rank s modulo n: interleaved(), looped_bfs()
  kV,     // ranks 0 to n - 1, then n - 1 to 0, and so on: zero_bubble_v()
};

// Returns the rank of each of `stages` stages. `ranks` must be above 0.
// Complexity: linear.
std::vector<int> place_stages(int stages, int ranks, Placement placement);

// Return one more than the largest stage, or micro-batch, in the schedule; 0 if
// it has no action. The schedule need not be valid.
//
// Throw std::invalid_argument if that number is no int: if there is a stage, or
// a micro-batch, 2147483647. Complexity: linear.
int num_stages(const Schedule& schedule);
int num_microbatches(const Schedule& schedule);

// Returns the rank of each of the num_stages() stages; -1 for a stage that does
// not occur. The schedule may be a part of another one (for example one rank of
// many) and may then leave stages out.
//
// Throws std::invalid_argument if num_stages() does, if a stage is below 0 or
// on two ranks, or if num_stages() is far larger than the number of actions
// (10^6 and 1000 times that number). Complexity: linear.
std::vector<int> rank_of_stage(const Schedule& schedule);

namespace internal {

// Returns the position after the block that has actions[k].
inline std::size_t block_end(const std::vector<Action>& actions,
                             std::size_t k) {
  while (k + 1 < actions.size() && actions[k].fused_with_next) ++k;
  return k + 1;
}

// Returns whether `a` is a recompute and `b` its backward, which may be a
// block.
inline bool is_late_recompute(const Action& a, const Action& b) {
  return a.kind == ActionKind::kRecompute && begins_backward(b.kind) &&
         a.stage == b.stage && a.microbatch == b.microbatch;
}

// Returns whether `schedule` has an action of this kind.
bool has_kind(const Schedule& schedule, ActionKind kind);

// Checks the sizes that a generator of schedules takes. Throws
// std::invalid_argument, with the numbers, unless each is at least 1, and their
// product, the number of cells, at most 2^28. So sums of a few of these numbers
// fit into int.
void check_sizes(int64_t ranks, int64_t microbatches,
                 int64_t stages_per_rank = 1);

// ---- Tables of actions

// A map from actions to numbers below size(). It has a number for every
// combination of a stage, a micro-batch and a kind that occur in the schedule,
// also for combinations that do not occur. Actions of one stage and micro-batch
// have consecutive numbers.
class ActionIndex {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // Throws std::invalid_argument if a stage or micro-batch is negative, or if
  // stages times micro-batches are far more than the actions, as in
  // rank_of_stage().
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

  // Returns the entry of any action, or null if it cannot be in the ranks.
  T* find(const Action& action) {
    const std::size_t found = index_.find(action);
    return found == ActionIndex::kNone ? nullptr : &entries_[found];
  }

  // Returns the entry of any action; T() if there is none.
  T get(const Action& action) const {
    const std::size_t found = index_.find(action);
    return found == ActionIndex::kNone ? T() : entries_[found];
  }

 private:
  ActionIndex index_;
  std::vector<T> entries_;
};

}  // namespace internal
}  // namespace gpipe
