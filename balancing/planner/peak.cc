#include "balancing/planner/peak.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpipe/simulation/memory.h"

namespace gpipe::balancing::planner {
namespace {

using gpipe::internal::freed_by;
using gpipe::internal::HeldParts;
using gpipe::internal::taken_by;

// Returns whether `a` has at least as many of everything as `b`.
bool covers(const Held& a, const Held& b) {
  for (std::size_t k = 0; k < a.inputs.size(); ++k) {
    if (a.inputs[k] < b.inputs[k] || a.graphs[k] < b.graphs[k]) return false;
  }
  return true;
}

// Adds a moment to those that no other one covers.
void add_moment(std::vector<Held>& moments, const Held& moment) {
  for (const Held& each : moments) {
    if (covers(each, moment)) return;
  }
  std::erase_if(moments,
                [&](const Held& each) { return covers(moment, each); });
  moments.push_back(moment);
}

// The cells that a rank holds while it runs.
class Walk {
 public:
  Walk(const std::vector<Action>& actions, const std::vector<int>& stages)
      : stages_(stages),
        now_{std::vector<int>(stages.size()), std::vector<int>(stages.size())} {
    for (const Action& action : actions) {
      microbatches_ = std::max(microbatches_, size(action.microbatch) + 1);
    }
    recomputed_.resize(stages.size() * microbatches_);
    split_.resize(stages.size() * microbatches_);
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute) recomputed_[cell(action)] = 1;
      if (action.kind == ActionKind::kBackwardWeight) split_[cell(action)] = 1;
    }
  }

  // Runs one action, or the actions of one block, which start together.
  void run(const Action* first, const Action* last) {
    for (const Action* each = first; each != last; ++each) take(*each);
    for (const Action* each = first; each != last; ++each) free(*each);
  }

  // Returns the moments without those that another one covers.
  std::vector<Held> moments() {
    keep();
    return std::move(moments_);
  }

 private:
  static std::size_t size(int number) {
    return static_cast<std::size_t>(number);
  }
  std::size_t place(const Action& action) const {
    return static_cast<std::size_t>(
        std::lower_bound(stages_.begin(), stages_.end(), action.stage) -
        stages_.begin());
  }
  std::size_t cell(const Action& action) const {
    return place(action) * microbatches_ + size(action.microbatch);
  }

  void take(const Action& action) {
    const HeldParts parts =
        taken_by(action.kind, recomputed_[cell(action)] != 0);
    const std::size_t k = place(action);
    now_.inputs[k] += parts.input;
    now_.graphs[k] += parts.activation;
    grew_ = grew_ || parts.input + parts.activation > 0;
  }

  void free(const Action& action) {
    const std::size_t c = cell(action);
    const HeldParts parts =
        freed_by(action.kind, recomputed_[c] != 0, split_[c] != 0);
    if (parts.activation + parts.weight == 0) return;
    keep();
    const std::size_t k = place(action);
    now_.inputs[k] -= parts.input;
    now_.graphs[k] -= parts.activation + parts.weight;
  }

  // Records the current moment if something was taken since the last one.
  void keep() {
    if (std::exchange(grew_, false)) add_moment(moments_, now_);
  }

  const std::vector<int>& stages_;
  std::size_t microbatches_ = 0;
  std::vector<char> recomputed_, split_;  // by cell()
  Held now_;
  bool grew_ = false;
  std::vector<Held> moments_;
};

}  // namespace

std::vector<Held> most_held(const std::vector<Action>& actions,
                            const std::vector<int>& stages) {
  Walk walk(actions, stages);
  for (std::size_t k = 0; k < actions.size();) {
    std::size_t end = k + 1;
    // A recompute in a block with its backward runs before it.
    while (end < actions.size() && actions[end - 1].fused_with_next) ++end;
    walk.run(actions.data() + k, actions.data() + end);
    k = end;
  }
  return walk.moments();
}

std::vector<Held> moments_of_stage(const std::vector<Held>& moments,
                                   std::size_t stage) {
  std::vector<Held> result;
  for (const Held& each : moments) {
    add_moment(result, {{each.inputs[stage]}, {each.graphs[stage]}});
  }
  return result;
}

double peak_bytes(const std::vector<Held>& moments,
                  const std::vector<int>& stages, const StageTable& table) {
  double resident = 0, most = 0;
  for (const int stage : stages) {
    resident += table.resident[stage];
  }
  for (const Held& moment : moments) {
    double bytes = 0;
    for (std::size_t k = 0; k < stages.size(); ++k) {
      const auto s = static_cast<std::size_t>(stages[k]);
      bytes += moment.inputs[k] * table.incoming[s] +
               moment.graphs[k] * table.saved[s];
    }
    most = std::max(most, bytes);
  }
  return resident + most;
}

double peak_bytes(const std::vector<Held>& moments, const GrowingBlock& block) {
  double most = 0;
  for (const Held& moment : moments) {
    most = std::max(most, moment.inputs[0] * block.incoming() +
                              moment.graphs[0] * block.saved());
  }
  return block.resident() + most;
}

}  // namespace gpipe::balancing::planner
