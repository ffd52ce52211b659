// A pipeline schedule as data: the actions of every rank, in their order.
// Does not depend on LibTorch.
#pragma once

#include <cstddef>
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
// needs (needs.h). Ranks synchronize in no other way.
struct Schedule {
  std::vector<std::vector<Action>> ranks;
};

namespace internal {
// Returns whether `schedule` has an action of this kind.
bool has_kind(const Schedule& schedule, ActionKind kind);
}  // namespace internal

}  // namespace gpipe
