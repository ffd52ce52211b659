// The sums of gradients over replicas, and sharded optimizers.
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "gpipe/distributed/replicas/member_rows.h"
#include "gpipe/distributed/replicas/reduce.h"
#include "gpipe/distributed/runner.h"

namespace gpipe::internal {

std::vector<at::Tensor> Runner::own_parameters() const {
  std::vector<at::Tensor> parameters;
  std::set<const at::TensorImpl*> seen;
  for (const Partition& part : workers_.stages().partitions) {
    if (part.remote) continue;
    for (const Layer& layer : part.layers) {
      for (at::Tensor& each : layer.module.ptr()->parameters()) {
        if (!seen.insert(each.unsafeGetTensorImpl()).second) continue;
        parameters.push_back(std::move(each));
      }
    }
  }
  return parameters;
}

void Runner::begin_sums(const TrainStep& step) {
  if (!sums_ || !step.with_backward()) return;
  // Backwards complete gradients in this order, if ranks run stages in order.
  std::vector<ReplicaSums::Parameter> parameters;
  std::map<at::TensorImpl*, int> shares;  // number of stages that have it
  for (auto part = workers_.stages().partitions.rbegin();
       part != workers_.stages().partitions.rend(); ++part) {
    std::set<at::TensorImpl*> seen;
    for (auto layer = part->layers.rbegin(); layer != part->layers.rend();
         ++layer) {
      if (part->remote) break;
      auto tensors = layer->module.ptr()->parameters();
      for (auto each = tensors.rbegin(); each != tensors.rend(); ++each) {
        if (!each->requires_grad()) continue;
        if (!seen.insert(each->unsafeGetTensorImpl()).second) continue;
        ++shares[each->unsafeGetTensorImpl()];
        parameters.push_back({part->index, std::move(*each)});
      }
    }
  }
  // Parameters of several stages are added up over these stages first, at the
  // end.
  parameters.erase(
      std::remove_if(parameters.begin(), parameters.end(),
                     [&](const ReplicaSums::Parameter& each) {
                       return shares[each.tensor.unsafeGetTensorImpl()] > 1;
                     }),
      parameters.end());
  sums_->begin(std::move(parameters));
}

void Runner::complete(int64_t, const at::Tensor& leaf, at::Tensor& grad,
                      const Event& made) {
  sums_->give(leaf, grad, made);
}

void Runner::add_up(TrainStep& step) {
  foreign_.check(step.leaves());
  if (!sums_ || !step.with_backward()) return;
  std::map<at::TensorImpl*, Summand> sums;
  for (Summand& each : sums_->finish()) {
    sums.emplace(each.like.unsafeGetTensorImpl(), std::move(each));
  }
  std::vector<TrainStep::LeafGrad>& grads = step.leaf_grads();
  std::vector<TrainStep::LeafGrad*> left;
  std::vector<Summand> rest;
  for (TrainStep::LeafGrad& each : grads) {
    const auto found = sums.find(each.leaf.unsafeGetTensorImpl());
    // A stage may have captured a parameter of another stage.
    if (each.shared && found != sums.end()) {
      TORCH_CHECK(!found->second.grad.defined(), "a parameter of partition ",
                  each.partition, " is used by several partitions of rank ",
                  layout_.rank,
                  " in this replica, but by one in another; give all replicas "
                  "the same layers");
      sums.erase(found);
    }
    if (each.shared || found == sums.end()) {
      left.push_back(&each);
      rest.push_back({each.leaf, std::move(each.grad)});
      continue;
    }
    each.grad = std::move(found->second.grad);
    if (shards_) each.target = shards_->shard_of(each.leaf);
    sums.erase(found);
  }
  all_reduce(*world_, *sums_transport_, layout_.same_stages(), tags_.words,
             rest);
  for (std::size_t k = 0; k < rest.size(); ++k) {
    left[k]->grad = std::move(rest[k].grad);
    if (!shards_ || !shards_->has(left[k]->leaf)) continue;
    // All replicas have the whole sum.
    left[k]->target = shards_->shard_of(left[k]->leaf);
    left[k]->grad =
        slice_of_member(left[k]->grad, layout_.replicas, layout_.replica);
  }
  // Gradients that only other replicas have.
  for (auto& [impl, each] : sums) {
    if (!each.grad.defined()) continue;
    TrainStep::LeafGrad& added = grads.emplace_back();
    added.leaf = each.like;
    added.grad = std::move(each.grad);
    if (shards_) added.target = shards_->shard_of(each.like);
  }
}

std::optional<std::vector<at::Tensor>> Runner::own_shards() {
  if (!shards_) return std::nullopt;
  return shards_->own();
}

void Runner::share_parameters() {
  if (!shards_) return;
  const auto running = enter();
  world_->reporting_failure("share_parameters()", [&] {
    shards_->spread(*world_, *sums_transport_, layout_.same_stages(),
                    tags_.sums);
  });
}

}  // namespace gpipe::internal
