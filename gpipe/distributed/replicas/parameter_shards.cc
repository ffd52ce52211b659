#include "gpipe/distributed/replicas/parameter_shards.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <string>

namespace gpipe::internal {
namespace {

std::string action() { return "sharing the parameters of the replicas"; }

}  // namespace

ParameterShards::ParameterShards(std::vector<at::Tensor> parameters,
                                 std::size_t members, std::size_t own)
    : parameters_(std::move(parameters)),
      shards_(parameters_.size()),
      members_(members),
      own_(own) {
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    numbers_.emplace(parameters_[k].unsafeGetTensorImpl(), k);
    follow(k);
  }
}

void ParameterShards::follow(std::size_t k) {
  const at::Tensor view =
      slice_of_member(parameters_[k].detach(), members_, own_);
  if (!view.defined()) return;
  at::Tensor& shard = shards_[k];
  if (!shard.defined()) {
    // A tensor of its own, because views cannot become leaves again.
    shard = view.alias().detach();
    shard.requires_grad_(parameters_[k].requires_grad());
    return;
  }
  shard.set_data(view);
  if (shard.grad().defined() && shard.grad().dtype() != view.dtype()) {
    shard.mutable_grad() = shard.grad().to(view.dtype());
  }
}

std::vector<at::Tensor> ParameterShards::own() {
  std::vector<at::Tensor> result;
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    if (!parameters_[k].requires_grad()) continue;
    at::Tensor shard = shard_of(parameters_[k]);
    if (shard.defined()) result.push_back(std::move(shard));
  }
  return result;
}

at::Tensor ParameterShards::shard_of(const at::Tensor& parameter) {
  const std::size_t k = numbers_.at(parameter.unsafeGetTensorImpl());
  if (shards_[k].defined() && !shards_[k].is_alias_of(parameter)) follow(k);
  return shards_[k];
}

void ParameterShards::spread(Reducer& reducer) {
  const c10::AutoGradMode no_graph(false);
  std::vector<at::Tensor> trained;
  std::vector<Summand> all;
  for (const at::Tensor& each : parameters_) {
    if (!each.requires_grad()) continue;
    trained.push_back(each);
    all.push_back({each, {}});
  }
  std::size_t begin = 0;
  for (const std::size_t end : cut_buckets(all)) {
    const auto options = trained[begin].options().device(reducer.device());
    std::vector<at::Tensor> parts{at::empty({0}, options)};
    std::vector<int64_t> numels(members_);
    for (std::size_t k = begin; k < end; ++k) {
      const at::Tensor part =
          slice_of_member(trained[k].detach(), members_, own_);
      if (part.defined()) {
        parts.push_back(part.to(reducer.device()).reshape({-1}));
      }
      for (std::size_t member = 0; member < members_; ++member) {
        numels[member] += numel_of_member(trained[k].sizes(), members_, member);
      }
    }
    const at::Tensor mine = at::cat(parts);
    std::vector<at::Tensor> theirs(members_);
    for (std::size_t member = 0; member < members_; ++member) {
      if (member != own_) theirs[member] = at::empty({numels[member]}, options);
    }
    reducer.exchange([&](std::size_t) { return mine; },
                     [&](std::size_t k) { return theirs[k]; }, action);
    for (std::size_t member = 0; member < members_; ++member) {
      if (member == own_) continue;
      int64_t at = 0;
      for (std::size_t k = begin; k < end; ++k) {
        const at::Tensor part =
            slice_of_member(trained[k].detach(), members_, member);
        if (!part.defined()) continue;
        part.copy_(theirs[member].narrow(0, at, part.numel()).view_as(part));
        at += part.numel();
      }
    }
    begin = end;
  }
}

}  // namespace gpipe::internal
