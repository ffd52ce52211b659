#include "gpipe/schedule/generators/controllable_memory.h"

#include <array>
#include <numeric>
#include <vector>

#include "gpipe/schedule/sizes.h"

namespace gpipe {
namespace {

// Units of time of a rank's work for one micro-batch: F, I and W of two stages.
constexpr int kInterval = 6;

// Units of time between the actions of one micro-batch. It passes the ranks in
// four legs: F from rank 0 to p - 1, F back to rank 0, I to p - 1, I back to 0.
struct Steps {
  std::array<int, 4> legs;   // from one rank to the next
  std::array<int, 3> turns;  // additional units between two legs
};

int rank_of(int stage, int ranks) {
  return stage < ranks ? stage : 2 * ranks - 1 - stage;
}

// The start times of F and I of micro-batch 0 on each stage. Those of
// micro-batch i are i * kInterval later.
struct Block {
  std::vector<int> forward, input;

  // Returns how many micro-batches are between the start of F and the end of I
  // at the same time.
  int limit(int stage) const {
    return (input[stage] - forward[stage]) / kInterval + 1;
  }
};

Block building_block(int ranks, const Steps& steps) {
  // For each rank: whether each unit of the interval is taken.
  std::vector<std::array<bool, kInterval>> used(ranks);
  Block block{std::vector<int>(2 * ranks), std::vector<int>(2 * ranks)};
  int time = 0;
  for (int k = 0; k < 4 * ranks; ++k) {
    const int leg = k / ranks;
    if (k > 0) {
      time += k % ranks ? steps.legs[leg] : 1 + steps.turns[leg - 1];
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
class Run {
 public:
  Run(int ranks, int microbatches, const Steps& steps, int capacity)
      : ranks_(ranks),
        microbatches_(microbatches),
        capacity_(capacity),
        block_(building_block(ranks, steps)) {
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
  Block block_;
  Done done_;
};

}  // namespace

Schedule v_half(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  const Steps steps{{1, 2, 1, 2}, {0, 1, 0}};
  return Run(ranks, microbatches, steps, ranks + 2).schedule();
}

Schedule v_min(int ranks, int microbatches) {
  internal::check_sizes(ranks, microbatches);
  const Steps steps{{1, 1, 1, 1}, {0, 0, 0}};
  return Run(ranks, microbatches, steps, 2 * ((ranks + 4) / 3)).schedule();
}

}  // namespace gpipe
