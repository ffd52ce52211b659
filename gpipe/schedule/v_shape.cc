#include "gpipe/schedule/v_shape.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

// ---- The common part of ZB-V and DualPipeV

// The actions of one rank. A chunk is one of its two stages (0: the first, 1:
// the second). Each kind takes the micro-batches of a chunk in ascending order.
class VRow {
 public:
  VRow(int ranks, int rank) : stages_{rank, 2 * ranks - 1 - rank} {}

  void forward(int chunk, bool fused_with_next = false) {
    actions_.push_back({stages_[chunk], ActionKind::kForward,
                        forwards_[chunk]++, fused_with_next});
  }
  void backward(int chunk) {
    actions_.push_back(
        {stages_[chunk], ActionKind::kBackward, backwards_[chunk]++});
  }
  // Adds an I and keeps its W for weight().
  void input(int chunk) {
    const int i = backwards_[chunk]++;
    actions_.push_back({stages_[chunk], ActionKind::kBackwardInput, i});
    weights_.push_back({stages_[chunk], ActionKind::kBackwardWeight, i});
  }
  // Adds the oldest pending W, or that of one chunk. Returns false if there is
  // none.
  bool weight(std::optional<int> chunk = std::nullopt) {
    const auto next = std::ranges::find_if(weights_, [&](const Action& each) {
      return !chunk || each.stage == stages_[*chunk];
    });
    if (next == weights_.end()) return false;
    actions_.push_back(*next);
    weights_.erase(next);
    return true;
  }

  int forwards(int chunk) const { return forwards_[chunk]; }
  std::vector<Action> actions() && { return std::move(actions_); }

 private:
  int stages_[2];
  int forwards_[2] = {}, backwards_[2] = {};
  std::vector<Action> weights_;  // pending
  std::vector<Action> actions_;
};

// Returns the schedule of the rows `row(ranks, rank, microbatches)`, which need
// `least` micro-batches. With fewer, the order is the one for `least`, without
// the missing micro-batches. Each row is selected before the next one is made,
// because all rows for `least` may need far more memory. Throws
// std::invalid_argument if there are too many cells with `least` micro-batches.
template <typename Row>
Schedule v_schedule(int ranks, int microbatches, int least, const Row& row) {
  const int made = std::max(least, microbatches);
  internal::check_sizes(ranks, made);
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    Schedule whole;
    whole.ranks.push_back(row(ranks, rank, made));
    Schedule selected = select(whole, [&](const Action& action) {
      return action.microbatch < microbatches;
    });
    schedule.ranks.push_back(std::move(selected.ranks.front()));
  }
  return schedule;
}

// ---- ZB-V

std::vector<Action> zero_bubble_row(int ranks, int rank, int microbatches) {
  VRow row(ranks, rank);
  const auto backward = [&](int chunk) {
    row.input(chunk);
    row.weight(chunk);
  };
  // Warm-up: forwards of the first chunk until the activations of micro-batch 0
  // come back from rank p - 1; then a forward of each chunk in turn, until the
  // gradient of micro-batch 0 comes back from rank 0.
  for (int k = 0; k < 2 * (ranks - rank) - 1; ++k) row.forward(0);
  for (int k = 0; k < rank; ++k) {
    row.forward(1);
    row.forward(0);
  }
  for (int k = 0; k < ranks - rank; ++k) {
    row.forward(1);
    backward(1);
  }
  while (row.forwards(1) < microbatches) {
    if (row.forwards(0) < microbatches) row.forward(0);
    backward(0);
    row.forward(1);
    backward(1);
  }
  // Drain: other ranks wait for Is, so Ws run only when there is no I.
  for (int k = 0; k < rank; ++k) {
    row.input(0);
    row.input(1);
  }
  for (int k = 0; k < ranks - rank; ++k) backward(0);
  while (row.weight(1)) {
  }
  while (row.weight(0)) {
  }
  return std::move(row).actions();
}

// ---- V-Half and V-Min

// Units of time of a rank's work for one micro-batch: F, I and W of two stages.
constexpr int kInterval = 6;

// Units of time between the actions of one micro-batch. It passes the ranks in
// four legs: F from rank 0 to p - 1, F back to rank 0, I to p - 1, I back to 0.
struct Offsets {
  std::array<int, 4> legs;   // from one rank to the next
  std::array<int, 3> turns;  // additional units between two legs
};

int rank_of(int stage, int ranks) {
  return stage < ranks ? stage : 2 * ranks - 1 - stage;
}

// The start times of F and I of micro-batch 0 on each stage. Those of
// micro-batch i are i * kInterval later.
struct BuildingBlock {
  std::vector<int> forward, input;

  // Returns how many micro-batches are between the start of F and the end of I
  // at the same time.
  int limit(int stage) const {
    return (input[stage] - forward[stage]) / kInterval + 1;
  }
};

BuildingBlock building_block(int ranks, const Offsets& offsets) {
  // For each rank: whether each unit of the interval is taken.
  std::vector<std::array<bool, kInterval>> used(ranks);
  BuildingBlock block{std::vector<int>(2 * ranks), std::vector<int>(2 * ranks)};
  int time = 0;
  for (int k = 0; k < 4 * ranks; ++k) {
    const int leg = k / ranks;
    if (k > 0) {
      time += k % ranks ? offsets.legs[leg] : 1 + offsets.turns[leg - 1];
    }
    const bool is_forward = leg < 2;
    const int stage = is_forward ? k : 4 * ranks - 1 - k;
    auto& units = used[rank_of(stage, ranks)];
    while (units[time % kInterval]) ++time;
    units[time % kInterval] = true;
    (is_forward ? block.forward : block.input)[stage] = time;
  }
  return block;
}

// The number of completed Fs, Is and Ws of each stage. Each kind takes the
// micro-batches of a stage in ascending order.
struct Done {
  std::vector<int> forwards, inputs, weights;
};

// A simulation of all ranks, which run one action per unit of time.
class VRun {
 public:
  VRun(int ranks, int microbatches, const Offsets& offsets, int capacity)
      : ranks_(ranks),
        microbatches_(microbatches),
        capacity_(capacity),
        block_(building_block(ranks, offsets)) {
    done_.forwards = done_.inputs = done_.weights = std::vector<int>(2 * ranks);
  }

  Schedule schedule() {
    Schedule schedule;
    schedule.ranks.resize(ranks_);
    const auto sum = [](const std::vector<int>& counts) {
      return std::accumulate(counts.begin(), counts.end(), 0);
    };
    // Terminates: the limits of a rank's stages add up to no more than its
    // capacity, so a full rank has a W to run, and the oldest micro-batch can
    // always continue.
    while (sum(done_.weights) < 2 * ranks_ * microbatches_) {
      const Done before = done_;
      for (int rank = 0; rank < ranks_; ++rank) {
        step(before, rank, &schedule.ranks[rank]);
      }
    }
    return schedule;
  }

 private:
  bool forward_can_begin(const Done& before, int stage) const {
    const int i = before.forwards[stage];
    return i < microbatches_ &&
           i - before.inputs[stage] < block_.limit(stage) &&
           (stage == 0 || before.forwards[stage - 1] > i);
  }
  bool input_can_begin(const Done& before, int stage) const {
    const int i = before.inputs[stage];
    return i < before.forwards[stage] &&
           (stage == 2 * ranks_ - 1 || before.inputs[stage + 1] > i);
  }

  void step(const Done& before, int rank, std::vector<Action>* out) {
    const std::array<int, 2> stages{rank, 2 * ranks_ - 1 - rank};
    int held = 0, first = 0;
    Action next{-1};
    const auto consider = [&](int stage, ActionKind kind, int i, int time) {
      time += i * kInterval;
      if (next.stage >= 0 && first <= time) return;
      next = {stage, kind, i};
      first = time;
    };
    for (const int stage : stages) {
      held += before.forwards[stage] - before.weights[stage];
      if (forward_can_begin(before, stage)) {
        consider(stage, ActionKind::kForward, before.forwards[stage],
                 block_.forward[stage]);
      }
      if (input_can_begin(before, stage)) {
        consider(stage, ActionKind::kBackwardInput, before.inputs[stage],
                 block_.input[stage]);
      }
    }
    const bool full = next.kind == ActionKind::kForward && held >= capacity_;
    if (next.stage < 0 || full) {
      next = weight(before, stages);
      if (next.stage < 0) return;
    }
    ++counts(next.kind)[next.stage];
    out->push_back(next);
  }

  // Returns the oldest pending W of the first stage that has one. Its stage is
  // -1 if there is none.
  static Action weight(const Done& before, const std::array<int, 2>& stages) {
    for (const int stage : stages) {
      const int i = before.weights[stage];
      if (i < before.inputs[stage])
        return {stage, ActionKind::kBackwardWeight, i};
    }
    return {-1, ActionKind::kBackwardWeight, 0};
  }

  std::vector<int>& counts(ActionKind kind) {
    if (kind == ActionKind::kForward) return done_.forwards;
    return kind == ActionKind::kBackwardInput ? done_.inputs : done_.weights;
  }

  int ranks_, microbatches_, capacity_;
  BuildingBlock block_;
  Done done_;
};

// ---- DualPipeV

std::vector<Action> dual_pipe_row(int ranks, int rank, int microbatches) {
  VRow row(ranks, rank);
  const auto forward_and_backward = [&](int forward_chunk, int backward_chunk) {
    row.forward(forward_chunk, /*fused_with_next=*/true);
    row.backward(backward_chunk);
  };
  const int below = ranks - 1 - rank;  // ranks after this one
  // Warm-up.
  for (int k = 0; k < 2 * below; ++k) row.forward(0);
  for (int k = 0; k <= rank; ++k) {
    row.forward(0);
    row.forward(1);
  }
  for (int k = 0; k < below; ++k) {
    row.input(1);
    row.weight();
    row.forward(1);
  }
  // Steady state, in blocks. The last rank does not begin with a block, since
  // the other ranks would wait for its first backward.
  for (int k = 0; k < microbatches - 2 * ranks + rank + 1; ++k) {
    if (k == 0 && below == 0) {
      row.forward(0);
      row.backward(1);
    } else {
      forward_and_backward(0, 1);
    }
    forward_and_backward(1, 0);
  }
  for (int k = 0; k < below; ++k) {
    row.backward(1);
    forward_and_backward(1, 0);
  }
  // Drain. From the middle on, Ws wait until there is no other action.
  for (int k = 0; k < 2 * (rank + 1); ++k) {
    const int chunk = 1 - k % 2;
    if (k <= rank) {
      row.backward(chunk);
    } else {
      row.input(chunk);
    }
  }
  for (int k = 0; k < below; ++k) {
    row.weight();
    row.input(0);
  }
  for (int k = 0; k <= rank; ++k) row.weight();
  return std::move(row).actions();
}

}  // namespace

Schedule zero_bubble_v(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  return v_schedule(ranks, microbatches, /*least=*/2 * ranks - 1,
                    zero_bubble_row);
}

Schedule v_half(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  const Offsets offsets{{1, 2, 1, 2}, {0, 1, 0}};
  return VRun(ranks, microbatches, offsets, ranks + 2).schedule();
}

Schedule v_min(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  const Offsets offsets{{1, 1, 1, 1}, {0, 0, 0}};
  return VRun(ranks, microbatches, offsets, 2 * ((ranks + 4) / 3)).schedule();
}

Schedule dual_pipe_v(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  return v_schedule(ranks, microbatches, /*least=*/2 * ranks, dual_pipe_row);
}

}  // namespace gpipe
