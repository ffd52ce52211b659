#include "balancing/planner/stages.h"

namespace gpipe::balancing::planner {

using gpipe::internal::kActionCosts;

Blocks::Blocks(const Problem& problem, const Workload& workload)
    : workload_(workload),
      savers_(workload.layers.size()),
      skips_into_(workload.layers.size()) {
  const auto sums = [&](const auto& cost) {
    std::vector<double> result = {0};
    for (const Layer& layer : workload.layers) {
      result.push_back(result.back() + cost(layer));
    }
    return result;
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
  for (const SavedBytes& saved : workload.saved) {
    int64_t before = -1;
    for (const int64_t saver : saved.savers) {
      savers_[saver].push_back({before, saved.bytes});
      before = saver;
    }
  }
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
  if (first_ > 0) incoming_ += blocks_->skips_into(first_, last_);
  ++last_;
}

StageTable stage_table(const Problem& problem, const Blocks& blocks,
                       const std::vector<int>& rank_of_stage,
                       const std::vector<int64_t>& balance) {
  StageTable table;
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
    table.incoming.push_back(block.incoming());
    table.trained.push_back(blocks.trained(first, last));
    table.resident.push_back(block.resident());
    Link link;
    if (s > 0 && rank_of_stage[s - 1] != rank) {
      link = problem.link(rank_of_stage[s - 1], rank);
    }
    table.wire.push_back(link.seconds_per_byte * table.incoming.back());
    table.delay.push_back(link.latency);
    first = last;
  }
  return table;
}

Costs costs_of(const StageTable& table) {
  Costs costs = table.seconds;
  costs.boundary_bytes.assign(table.incoming.begin() + 1, table.incoming.end());
  costs.resident_bytes = table.resident;
  costs.activation_bytes = table.saved;
  costs.input_bytes = table.incoming;
  return costs;
}

}  // namespace gpipe::balancing::planner
