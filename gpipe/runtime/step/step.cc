#include "gpipe/runtime/step/step.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace gpipe::internal {
namespace {

int64_t find_key(const std::vector<SkipRoute>& routes, const SkipKey& key) {
  for (std::size_t k = 0; k < routes.size(); ++k) {
    if (routes[k].key == key) return static_cast<int64_t>(k);
  }
  return -1;
}

}  // namespace

Stages::Stages(std::vector<Partition> partitions_in,
               std::vector<int> rank_of_stage_in)
    : partitions(std::move(partitions_in)),
      rank_of_stage(std::move(rank_of_stage_in)) {
  for (const c10::Device& device : devices()) {
    copiers.emplace_back(device);
  }
  for (const Partition& from : partitions) {
    for (std::size_t k = 0; k < from.exports.size(); ++k) {
      const SkipRoute& route = from.exports[k];
      links.push_back({route.from, static_cast<int64_t>(k), route.to,
                       find_key(partitions[route.to].imports, route.key)});
    }
  }
}

std::vector<bool> Stages::leaves_device(int64_t stage) const {
  const Partition& from = partitions[stage];
  const auto goes_away = [&](int64_t to) {
    const Partition& next = partitions[to];
    return next.remote || next.device != from.device;
  };
  // The last stage returns its outputs to the caller.
  std::vector<bool> leaves = {stage + 1 < size() && goes_away(stage + 1)};
  for (const SkipRoute& skip : from.exports) {
    leaves.push_back(goes_away(skip.to));
  }
  return leaves;
}

std::vector<c10::Device> Stages::devices() const {
  const int ranks =
      1 + *std::max_element(rank_of_stage.begin(), rank_of_stage.end());
  std::vector<c10::Device> devices(ranks, c10::Device(c10::kCPU));
  for (std::size_t stage = 0; stage < partitions.size(); ++stage) {
    if (partitions[stage].remote) continue;
    devices[rank_of_stage[stage]] = partitions[stage].device;
  }
  return devices;
}

Step::Step(Stages& stages, int64_t microbatches,
           const std::function<bool(int64_t, int64_t)>& checkpointed,
           int64_t before)
    : rank_of_stage(stages.rank_of_stage),
      cells(stages.partitions.size()),
      leaves(stages.partitions.size()),
      stages_(stages),
      microbatches_(microbatches),
      threads_(stages.partitions.size()) {
  for (std::size_t j = 0; j < cells.size(); ++j) {
    if (stages.partitions[j].remote) continue;
    stages.partitions[j].casts.begin(stages.partitions[j].modules.parameters());
    for (int64_t i = 0; i < microbatches; ++i) {
      cells[j].emplace_back(stages.partitions[j], before + i,
                            checkpointed(static_cast<int64_t>(j), i));
    }
  }
}

void Step::number_leaves(int64_t j, int64_t i) {
  Cell& cell = cells[j][i];
  threads_[j].store(at::RecordFunction::currentThreadId(),
                    std::memory_order_relaxed);
  claim(j, cell.take_captured());
  auto& [list, numbers] = leaves[j];
  for (const at::Tensor& leaf : cell.leaves()) {
    const auto [entry, is_new] = numbers.emplace(
        leaf.unsafeGetTensorImpl(), static_cast<int64_t>(list.size()));
    if (is_new) list.push_back(leaf);
    cell.leaf_numbers().push_back(entry->second);
  }
}

// A running backward changes edges of its graph. Another worker would follow
// the changed edges: in its own backward, or, with one micro-batch (whose
// backwards wait for each other), in an early recompute or a weight part.
void Step::claim(int64_t j, std::vector<Cell::Captured> nodes) {
  if (nodes.empty()) return;
  for (const auto& each : nodes) check_maker(j, each);
  std::lock_guard<std::mutex> lock(claims_mutex_);
  for (auto& each : nodes) {
    const auto [claim, is_new] =
        claims_.emplace(std::move(each.node), Claim{j, std::move(each.layer)});
    const int64_t other = claim->second.partition;
    TORCH_CHECK(is_new || other == j, "layers of partitions ",
                std::min(other, j), " and ", std::max(other, j),
                " use a tensor that has been computed outside of the pipeline "
                "(by ",
                claim->first->name(),
                "), whose graph two workers cannot go through at the same "
                "time; compute it in each of these layers, or choose a balance "
                "that puts them into one partition");
  }
}

// Such a tensor did not come through the pipeline. Its value may be that of
// another micro-batch, and its gradient would not reach the cell that made it.
void Step::check_maker(int64_t j, const Cell::Captured& captured) const {
  const uint64_t maker = captured.node->thread_id();
  for (std::size_t k = 0; k < threads_.size(); ++k) {
    const bool made_it = threads_[k].load(std::memory_order_relaxed) == maker;
    TORCH_CHECK(
        !made_it,
        captured.layer.empty() ? c10::str("partition ", j)
                               : c10::str("layer '", captured.layer, "'"),
        " uses a tensor that a layer of partition ", k, " has computed (by ",
        captured.node->name(),
        "), but that did not come through the pipeline, such as a member that "
        "one layer writes and another reads. Partitions work on different "
        "micro-batches at the same time. Pass the tensor on as an element of "
        "a tuple, or as a skip tensor (gpipe/skip.h)");
  }
}

std::string Step::describe_captured(int64_t j) {
  std::lock_guard<std::mutex> lock(claims_mutex_);
  const std::pair<const NodePtr, Claim>* found = nullptr;
  for (const auto& each : claims_) {
    if (each.second.partition != j) continue;
    // Only the first node of a captured graph has a layer.
    if (!found || found->second.layer.empty()) found = &each;
  }
  if (!found) return "";
  return c10::str(found->second.layer.empty()
                      ? c10::str("a layer of partition ", j)
                      : c10::str("layer '", found->second.layer, "'"),
                  " uses a tensor that has been computed outside of the "
                  "pipeline (by ",
                  found->first->name(), ")");
}

bool Step::is_shared(int64_t j, const at::Tensor& leaf) const {
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    if (static_cast<int64_t>(k) == j) continue;
    if (leaves[k].numbers.count(leaf.unsafeGetTensorImpl()) > 0) return true;
  }
  return false;
}

std::vector<SharedLeaf> Step::shared_leaves() const {
  std::vector<SharedLeaf> result;
  std::unordered_map<at::TensorImpl*, std::size_t> indices;
  for (std::size_t j = 0; j < leaves.size(); ++j) {
    const auto& list = leaves[j].list;
    for (std::size_t k = 0; k < list.size(); ++k) {
      const auto [entry, is_new] =
          indices.emplace(list[k].unsafeGetTensorImpl(), result.size());
      if (is_new) result.push_back({list[k], {}});
      result[entry->second].places.emplace_back(static_cast<int64_t>(j),
                                                static_cast<int64_t>(k));
    }
  }
  return result;
}

Failure Step::failure_at(const Action& action, Phase phase) const {
  return {action.stage, action.microbatch, phase,
          cells[action.stage][action.microbatch].layer_at_work(), ""};
}

}  // namespace gpipe::internal
