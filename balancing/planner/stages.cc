#include "balancing/planner/stages.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

namespace gpipe::balancing::planner {

using gpipe::internal::HeldParts;
using gpipe::internal::kActionCosts;

std::vector<double> prefix_sums(const std::vector<double>& costs) {
  std::vector<double> sums = {0};
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  return sums;
}

// ---- Costs

Blocks::Blocks(const Problem& problem, const Workload& workload)
    : workload_(workload),
      savers_(workload.layers.size()),
      weight_savers_(workload.layers.size()),
      skips_into_(workload.layers.size()) {
  const auto sums = [&](const auto& cost) {
    std::vector<double> costs;
    for (const Layer& layer : workload.layers) costs.push_back(cost(layer));
    return prefix_sums(costs);
  };
  // In the order of ActionKind.
  constexpr double Layer::*kSeconds[] = {
      &Layer::forward, &Layer::backward, &Layer::backward_input,
      &Layer::backward_weight, &Layer::recompute};
  for (std::size_t k = 0; k < seconds_.size(); ++k) {
    seconds_[k] = sums([&](const Layer& layer) { return layer.*kSeconds[k]; });
  }
  trained_ = sums([](const Layer& layer) { return layer.trained_bytes; });
  resident_ = sums([&](const Layer& layer) {
    return problem.param_scale * layer.trained_bytes + layer.fixed_bytes;
  });
  const auto add = [](const std::vector<SavedBytes>& all, auto& savers) {
    for (const SavedBytes& saved : all) {
      int64_t before = -1;
      for (const int64_t saver : saved.savers) {
        savers[saver].push_back({before, saved.bytes});
        before = saver;
      }
    }
  };
  add(workload.saved, savers_);
  add(workload.saved_for_weights.empty() ? workload.saved
                                         : workload.saved_for_weights,
      weight_savers_);
  for (const Skip& skip : workload.skips) {
    skips_into_[skip.popped_by].push_back({skip.stashed_by, skip.bytes});
  }
}

std::vector<Blocks> blocks_of(const Problem& problem) {
  std::vector<Blocks> blocks;
  blocks.reserve(problem.workloads.size());
  for (const Workload& workload : problem.workloads) {
    blocks.emplace_back(problem, workload);
  }
  return blocks;
}

double Blocks::sum(const std::vector<Entry>& entries, int64_t first) {
  double bytes = 0;
  for (const Entry& each : entries) {
    if (each.from < first) bytes += each.bytes;
  }
  return bytes;
}

GrowingBlock::GrowingBlock(const Blocks& blocks, int64_t first)
    : blocks_(&blocks), first_(first), last_(first) {
  if (first > 0) incoming_ = blocks.workload().layers[first - 1].output_bytes;
}

void GrowingBlock::extend() {
  saved_ += blocks_->saved_of(first_, last_);
  for_weights_ += blocks_->for_weights_of(first_, last_);
  if (first_ > 0) incoming_ += blocks_->skips_into(first_, last_);
  ++last_;
}

namespace {

// Returns the bytes of skips that each stage pops and another stage on the same
// rank has stashed: they are not copied.
std::vector<double> staying_skips(const Workload& workload,
                                  const std::vector<int>& rank_of_stage,
                                  const Balance& balance) {
  std::vector<double> bytes(balance.size());
  Balance ends = balance;
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  const auto stage_of = [&](int64_t layer) {
    return std::ranges::upper_bound(ends, layer) - ends.begin();
  };
  for (const Skip& skip : workload.skips) {
    const auto from = stage_of(skip.stashed_by), to = stage_of(skip.popped_by);
    if (from != to && rank_of_stage[from] == rank_of_stage[to]) {
      bytes[to] += skip.bytes;
    }
  }
  return bytes;
}

}  // namespace

StageTable stage_table(const Problem& problem, const Blocks& blocks,
                       const std::vector<int>& rank_of_stage,
                       const Balance& balance) {
  StageTable table;
  const std::vector<double> staying =
      staying_skips(blocks.workload(), rank_of_stage, balance);
  int64_t first = 0;
  for (std::size_t s = 0; s < balance.size(); ++s) {
    const int64_t last = first + balance[s];
    const int rank = rank_of_stage[s];
    const double speed = problem.ranks[rank].speed;
    for (std::size_t k = 0; k < kActionCosts.size(); ++k) {
      const auto kind = static_cast<ActionKind>(k);
      (table.seconds.*kActionCosts[k].list)
          .push_back(blocks.seconds(kind, first, last) / speed +
                     problem.action_seconds);
    }
    GrowingBlock block(blocks, first);
    while (block.last() < last) block.extend();
    table.saved.push_back(block.saved());
    table.for_weights.push_back(block.for_weights());
    table.incoming.push_back(block.incoming());
    table.trained.push_back(blocks.trained(first, last));
    table.resident.push_back(block.resident());
    Link there, back;
    if (s > 0 && rank_of_stage[s - 1] != rank) {
      there = problem.link(rank_of_stage[s - 1], rank);
      back = problem.link(rank, rank_of_stage[s - 1]);
    }
    const double carried = table.incoming.back() - staying[s];
    table.wire.push_back(there.seconds_per_byte * carried);
    table.delay.push_back(there.latency);
    table.wire_back.push_back(back.seconds_per_byte * carried);
    table.delay_back.push_back(back.latency);
    first = last;
  }
  return table;
}

Costs costs_of(const StageTable& table) {
  Costs costs = table.seconds;
  costs.boundary_bytes.assign(table.incoming.begin() + 1, table.incoming.end());
  costs.resident_bytes = table.resident;
  costs.activation_bytes = table.saved;
  costs.weight_activation_bytes = table.for_weights;
  costs.input_bytes = table.incoming;
  return costs;
}

// ---- What a rank holds at most

namespace {

// Returns whether `a` has at least as many of everything as `b`.
bool covers(const Held& a, const Held& b) {
  return std::ranges::equal(a, b, [](const HeldParts& a, const HeldParts& b) {
    return a.input >= b.input && a.activation >= b.activation &&
           a.weight >= b.weight;
  });
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
        rule_(std::array{std::span(actions)}),
        now_(stages.size()) {}

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
  // Adds `parts` of the action's cell, `sign` times.
  void add(const Action& action, const HeldParts& parts, int sign) {
    const auto place = std::ranges::lower_bound(stages_, action.stage);
    HeldParts& now = now_[static_cast<std::size_t>(place - stages_.begin())];
    now.input += sign * parts.input;
    now.activation += sign * parts.activation;
    now.weight += sign * parts.weight;
  }

  void take(const Action& action) {
    const HeldParts parts = rule_.taken_by(action);
    add(action, parts, 1);
    grew_ = grew_ || parts.input + parts.activation > 0;
  }

  void free(const Action& action) {
    const HeldParts parts = rule_.freed_by(action);
    if (parts.activation == 0 && parts.weight == 0) return;
    keep();
    add(action, parts, -1);
    // An I leaves something for its W.
    grew_ = parts.weight < 0;
  }

  // Records the current moment if something was taken since the last one.
  void keep() {
    if (std::exchange(grew_, false)) add_moment(moments_, now_);
  }

  const std::vector<int>& stages_;
  const gpipe::internal::HeldRule rule_;
  Held now_;
  bool grew_ = false;
  std::vector<Held> moments_;
};

}  // namespace

std::vector<Held> most_held(const std::vector<Action>& actions,
                            const std::vector<int>& stages) {
  Walk walk(actions, stages);
  for (std::size_t k = 0; k < actions.size();) {
    // A recompute in a block with its backward runs before it.
    const std::size_t end = gpipe::internal::block_end(actions, k);
    walk.run(actions.data() + k, actions.data() + end);
    k = end;
  }
  return walk.moments();
}

std::vector<Held> moments_of_stage(const std::vector<Held>& moments,
                                   std::size_t stage) {
  std::vector<Held> result;
  for (const Held& each : moments) {
    add_moment(result, {each[stage]});
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
      bytes += moment[k].input * table.incoming[s] +
               moment[k].activation * table.saved[s] +
               moment[k].weight * table.for_weights[s];
    }
    most = std::max(most, bytes);
  }
  return resident + most;
}

double peak_bytes(const std::vector<Held>& moments, const GrowingBlock& block) {
  double most = 0;
  for (const Held& moment : moments) {
    most = std::max(most, moment[0].input * block.incoming() +
                              moment[0].activation * block.saved() +
                              moment[0].weight * block.for_weights());
  }
  return block.resident() + most;
}

}  // namespace gpipe::balancing::planner
