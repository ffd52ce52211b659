#include "balancing/chain/chain.h"

#include <algorithm>
#include <cstddef>

#include "balancing/chain/check.h"
#include "balancing/chain/costs.h"
#include "balancing/chain/memory.h"
#include "balancing/chain/paths.h"
#include "balancing/chain/search.h"
#include "balancing/chain/ties.h"
#include "balancing/solver/fill_drain.h"
#include "balancing/solver/partition.h"
#include "balancing/solver/sums.h"
#include "gpipe/text/refuse.h"

namespace gpipe::balancing {
namespace {

StageCost cost_of(const Chain& chain, const detail::SkipsByPop& skips,
                  int64_t partition, int64_t first, int64_t last) {
  StageCost cost;
  detail::BlockBytes bytes(chain, skips, partition, first);
  for (int64_t k = first; k < last; ++k) {
    cost.forward += chain.layers[k].forward;
    cost.backward += chain.layers[k].backward;
    bytes.extend();
  }
  cost.forward /= chain.devices[partition].speed;
  cost.backward /= chain.devices[partition].speed;
  cost.memory_bytes = bytes.memory();
  if (partition > 0) {
    cost.transfer =
        chain.link.latency + chain.link.seconds_per_byte * bytes.input();
  }
  return cost;
}

}  // namespace

void keep_for(Chain& chain, ChainSchedule schedule, Checkpoint checkpoint) {
  if (chain.devices.empty()) internal::refuse("there are no devices");
  detail::check_microbatches(chain.microbatches);
  const auto partitions = std::ssize(chain.devices);
  chain.graphs_kept.clear();
  chain.inputs_kept.clear();
  for (int64_t j = 0; j < partitions; ++j) {
    const bool in_turns = schedule == ChainSchedule::kOneForwardOneBackward;
    const int64_t under_way = in_turns
                                  ? std::min(partitions - j, chain.microbatches)
                                  : chain.microbatches;
    int64_t graphs = under_way;
    if (checkpoint == Checkpoint::kAlways) graphs = 1;
    if (checkpoint == Checkpoint::kExceptLast) {
      // In fill-drain the backward of the last micro-batch runs first.
      graphs = in_turns ? std::min<int64_t>(under_way, 2) : 1;
    }
    chain.graphs_kept.push_back(graphs);
    chain.inputs_kept.push_back(under_way);
  }
}

StageCost stage_cost(const Chain& chain, int64_t partition, int64_t first,
                     int64_t last) {
  detail::check_chain(chain);
  const auto partitions = std::ssize(chain.devices);
  const auto layers = std::ssize(chain.layers);
  if (partition < 0 || partition >= partitions) {
    internal::refuse("there is no partition ", partition, " of ", partitions);
  }
  if (first < 0 || first >= last || last > layers) {
    internal::refuse("there is no block [", first, ", ", last, ") of ", layers,
                     " layers");
  }
  if (partition > 0 && first == 0) {
    internal::refuse(
        "partition ", partition,
        " cannot begin at layer 0: the partitions before it need a "
        "layer each");
  }
  return cost_of(chain, detail::SkipsByPop(chain), partition, first, last);
}

std::vector<StageCost> stage_costs(const Chain& chain,
                                   const std::vector<int64_t>& balance) {
  detail::check_balance(chain, balance);
  const detail::SkipsByPop skips(chain);
  std::vector<StageCost> stages;
  int64_t first = 0;
  for (std::size_t j = 0; j < balance.size(); ++j) {
    const int64_t last = first + balance[j];
    stages.push_back(
        cost_of(chain, skips, static_cast<int64_t>(j), first, last));
    first = last;
  }
  return stages;
}

double makespan(const Chain& chain, const std::vector<int64_t>& balance) {
  return makespan(stage_costs(chain, balance), chain.microbatches);
}

double makespan(const std::vector<StageCost>& stages, int64_t microbatches) {
  if (stages.empty()) internal::refuse("there are no stages");
  detail::check_microbatches(microbatches);
  double sum = 0, forward = 0, backward = 0;
  for (const StageCost& stage : stages) {
    sum += stage.forward + stage.backward + 2 * stage.transfer;
    forward = std::max({forward, stage.forward, stage.transfer});
    backward = std::max({backward, stage.backward, stage.transfer});
  }
  return sum + static_cast<double>(microbatches - 1) * (forward + backward);
}

std::vector<int64_t> balance_chain(const Chain& chain) {
  detail::check_chain(chain);
  const detail::ChainCosts costs(chain);
  const detail::ChainPaths paths(costs);
  const std::vector<detail::Label> labels = detail::best_labels(paths);
  if (labels.empty()) detail::throw_infeasible(costs);
  return detail::evenest(paths, labels);
}

std::vector<std::vector<int64_t>> detail::plain_balances(const Chain& chain) {
  std::vector<double> forward, backward, both;
  for (const ChainLayer& layer : chain.layers) {
    // Halves do not overflow when they are added.
    forward.push_back(layer.forward / 2);
    backward.push_back(layer.backward / 2);
    both.push_back(forward.back() + backward.back());
  }
  const auto partitions = std::ssize(chain.devices);
  return {
      balance_cost(both, partitions),
      balance_fill_drain(forward, backward, partitions, chain.microbatches)};
}

}  // namespace gpipe::balancing
