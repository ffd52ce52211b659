// Options for the pipelines of tests, on the devices of the test's variant.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/devices.h"

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

}  // namespace gpipe::testing
