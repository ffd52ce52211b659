// A check that an optimizer may be spread over the replicas of a pipeline.
#pragma once

#include <torch/optim/optimizer.h>

namespace gpipe {

// Throws c10::TypeError if `optimizer` does not work element by element, so
// that it would compute something else from shards of the parameters
// (DistributedOptions::shard_optimizer). Call it after the optimizer is made,
// on every rank:
//
//   torch::optim::AdamW optimizer(pipeline->optimizer_parameters());
//   gpipe::check_shardable(optimizer);
//
// Of LibTorch's optimizers that is LBFGS, whose steps depend on the products of
// all gradients; classes derived from LBFGS are refused, too. SGD, Adam, AdamW,
// RMSprop and Adagrad are accepted. So are other types, about which nothing is
// known: they must compute each element of a parameter from the elements of its
// gradient and state at the same place.
//
// Threads: any thread, as long as no other thread changes the optimizer.
void check_shardable(const torch::optim::Optimizer& optimizer);

}  // namespace gpipe
