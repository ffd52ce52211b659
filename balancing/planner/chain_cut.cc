#include "balancing/planner/chain_cut.h"

#include <algorithm>

#include "balancing/chain/chain.h"
#include "balancing/solver/infeasible.h"

namespace gpipe::balancing::planner {
namespace {

Chain chain_of(const Problem& problem, const Workload& workload,
               bool recomputes) {
  Chain chain;
  chain.microbatches = workload.microbatches;
  for (const Link& link : problem.links) {
    chain.link.latency = std::max(chain.link.latency, link.latency);
    chain.link.seconds_per_byte =
        std::max(chain.link.seconds_per_byte, link.seconds_per_byte);
  }
  for (const Rank& rank : problem.ranks) {
    chain.devices.push_back({rank.speed, rank.memory_bytes});
  }
  for (const Layer& layer : workload.layers) {
    ChainLayer& made = chain.layers.emplace_back();
    made.forward = layer.forward;
    made.backward = layer.backward + (recomputes ? layer.recompute : 0);
    made.output_bytes = layer.output_bytes;
    made.resident_bytes =
        problem.param_scale * layer.trained_bytes + layer.fixed_bytes;
  }
  // In a later stage a shared tensor arrives from outside, and counts as input.
  for (const SavedBytes& saved : workload.saved) {
    chain.layers[saved.savers[0]].saved_bytes += saved.bytes;
  }
  chain.skips = workload.skips;
  return chain;
}

}  // namespace

std::optional<std::vector<int64_t>> chain_cut(const Problem& problem,
                                              const Candidate& candidate) {
  const bool fill_drain = candidate.schedule == "fill-drain";
  if ((!fill_drain && candidate.schedule != "1f1b") || candidate.offload ||
      candidate.recompute == kWhereNeeded) {
    return std::nullopt;
  }
  const Workload& workload = problem.workloads[candidate.workload];
  Chain chain = chain_of(
      problem, workload,
      recomputed_microbatches(candidate.recompute, workload.microbatches) > 0);
  keep_for(chain,
           fill_drain ? ChainSchedule::kFillDrain
                      : ChainSchedule::kOneForwardOneBackward,
           *candidate.recompute);
  try {
    return balance_chain(chain);
  } catch (const InfeasibleError&) {
    return std::nullopt;
  }
}

}  // namespace gpipe::balancing::planner
