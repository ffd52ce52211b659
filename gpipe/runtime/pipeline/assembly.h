// Builds partitions on devices from the layers of a Sequential. Used by GPipe
// and by DistributedPipeline.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/runtime/cell/partition.h"

namespace gpipe::internal {

// Throws c10::ValueError unless each entry of `balance` is positive and the sum
// is `layers`. The text says how to compute a balance that fits.
void check_balance(const std::vector<int64_t>& balance, std::size_t layers);

// Throws c10::ValueError if an entry of `balance` is not positive.
void check_positive(const std::vector<int64_t>& balance);

// Throws c10::ValueError if `stages_per_rank` is not positive, or if
// `partitions` is not a multiple of it.
void check_stages_per_rank(std::size_t partitions, int64_t stages_per_rank);

// Throws c10::ValueError unless `chunks` is positive.
void check_chunks(int64_t chunks);

// Throws c10::ValueError if a layer occurs twice.
void check_layers_differ(const torch::nn::Sequential& module);

// Returns the layers of `module` with their names and declared skips.
std::vector<Layer> layers_of(torch::nn::Sequential module);

// Throws c10::ValueError if partitions in different places share a parameter or
// a buffer, since a tensor can be in one place only. Also throws if any two
// partitions share running statistics of a BatchNorm, since each forward
// changes them.
// `places`: the place of each partition, such as its device.
// `kind`: the word for a place in the error, such as "device".
void check_sharing(const std::vector<Partition>& partitions,
                   const std::vector<std::string>& places,
                   const std::string& kind);

// Makes BatchNorm layers collect running statistics per mini-batch.
void defer_norms(std::vector<Partition>& partitions);

// Returns whether any parameter or buffer of `module` is not on `device`.
bool is_off(const torch::nn::Module& module, const c10::Device& device);

// Moves layers to the device of their partition, unless they are there already.
void move_layers(std::vector<Partition>& partitions);

}  // namespace gpipe::internal
