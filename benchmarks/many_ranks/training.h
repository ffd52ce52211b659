// The training of many_ranks, in one process and in many.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "gpipe/schedule.h"

namespace gpipe::benchmarks {

// What all processes do.
struct Training {
  int64_t replicas = 1, microbatches = 16, steps = 5;
};

// Returns layers for LayerBuilder. Their weights depend on their numbers only.
torch::nn::Sequential make_layers(int64_t first, int64_t count);

// Return the rows of a replica, one for each micro-batch, and their targets.
torch::Tensor inputs_of(const Training& training, int64_t replica);
torch::Tensor targets_of(const Training& training, int64_t replica);

torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target);

Schedule schedule_of(const Training& training, int64_t ranks);

// One step of an optimizer: subtracts a tenth of each gradient and clears it.
void update(const std::vector<torch::Tensor>& parameters);

// Returns a checksum of the bits of the parameters.
uint32_t bits_of(const std::vector<torch::Tensor>& parameters);

// Trains `ranks` layers in this process: the steps of `training` and the one
// before them. Each replica's gradients are computed by a GPipe of `ranks`
// partitions, and added in the order of the replicas. Returns the checksum of
// each layer.
//
// The bits are those of DistributedPipeline if the numbers of replicas and of
// micro-batches are powers of two. Otherwise the weights of the means round in
// another order.
std::vector<uint32_t> train_in_one_process(const Training& training,
                                           int64_t ranks);

}  // namespace gpipe::benchmarks
