// From the layers of a Sequential to partitions on devices: what GPipe and the
// pipeline of several processes have in common.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/runtime/partition.h"

namespace gpipe {

// c10::ValueError, with a way to a balance that fits, unless each entry is
// positive and the sum is the number of layers.
void check_balance(const std::vector<int64_t>& balance, std::size_t layers);

// c10::ValueErrors: for an entry of a balance that is not positive; for a
// number of partitions that is no multiple of stages_per_rank; for no chunks.
void check_positive(const std::vector<int64_t>& balance);
void check_stages_per_rank(std::size_t partitions, int64_t stages_per_rank);
void check_chunks(int64_t chunks);

// c10::ValueError for a layer that is there twice.
void check_layers_differ(const torch::nn::Sequential& module);

// The layers with their names and skips.
std::vector<Layer> layers_of(torch::nn::Sequential module);

// A parameter or a buffer lives in one place, so partitions in different ones
// cannot share it, and nor can any share the running statistics of a BatchNorm,
// which each forward changes: c10::ValueError. `places`: of the partitions;
// `kind`: what a place is ("device").
void check_sharing(const std::vector<Partition>& partitions,
                   const std::vector<std::string>& places,
                   const std::string& kind);

// BatchNorm's statistics count by mini-batch.
void defer_norms(std::vector<Partition>& partitions);

// Whether a parameter or a buffer is on another device.
bool is_off(const torch::nn::Module& module, const c10::Device& device);

// Moves layers that are not there to their partition's device.
void move_layers(std::vector<Partition>& partitions);

}  // namespace gpipe
