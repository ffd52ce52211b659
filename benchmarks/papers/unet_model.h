// The models of the tables about U-Nets.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "benchmarks/harness/experiment/experiment.h"
#include "models/unet.h"

namespace gpipe::benchmarks {

// The name of the column for Experiment::size. Its numbers are the arguments of
// unet_of().
constexpr char kUnetSize[] = "(B, C)";

// Returns a U-Net of depth 5 with B convolutions per cell and C channels at the
// first level, as in torchgpipe's benchmarks. (B, C) is `experiment.size`.
inline torch::nn::Sequential unet_of(const Experiment& experiment) {
  return models::unet(/*depth=*/5, experiment.size.at(0),
                      experiment.size.at(1));
}

}  // namespace gpipe::benchmarks
