// Options for the pipelines of tests, on the devices of the test's variant, and
// the schedules that tests loop over.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"

namespace gpipe::testing {

// All checkpoint modes, for tests that loop over them.
constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast,
                                 Checkpoint::kNever};

// Returns options with partition j on device(j). The defaults are those of
// GPipeOptions.
inline GPipeOptions options(const std::vector<int64_t>& balance,
                            int64_t chunks = 1,
                            Checkpoint mode = Checkpoint::kExceptLast) {
  return GPipeOptions(balance).chunks(chunks).checkpoint(mode).devices(
      devices(balance.size()));
}

// Returns options with one layer per partition, for two micro-batches.
inline GPipeOptions one_each(const torch::nn::Sequential& model,
                             Checkpoint mode = Checkpoint::kExceptLast) {
  return options(std::vector<int64_t>(model->size(), 1), 2, mode);
}

// Returns the pipeline with these options.
inline GPipe one_layer_each(torch::nn::Sequential model, Checkpoint mode) {
  return GPipe(model, one_each(model, mode));
}

// Returns options that cut `layers` layers into the stages of `schedule`. Each
// partition has one thread.
inline GPipeOptions options_for(const Schedule& schedule, int64_t layers,
                                Checkpoint mode = Checkpoint::kNever) {
  const int stages = num_stages(schedule);
  const std::size_t ranks = schedule.ranks.size();
  return GPipeOptions(cut(layers, stages))
      .stages_per_rank(stages / static_cast<int64_t>(ranks))
      .placement(placement_of(schedule))
      .devices(devices(ranks))
      .checkpoint(mode)
      .threads_per_partition(1);
}

// Returns the schedule of that name, or nullopt if it does not exist in this
// size.
inline std::optional<Schedule> schedule_of(const std::string& name, int ranks,
                                           int microbatches,
                                           int stages_per_rank) {
  try {
    return named_schedule(name, ranks, microbatches, stages_per_rank);
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

// Returns a leaf with the values of `tensor`.
inline torch::Tensor leaf_of(const torch::Tensor& tensor,
                             const torch::Device& where = device()) {
  return tensor.detach().clone().to(where).requires_grad_();
}

}  // namespace gpipe::testing
