// What the tables on U-Nets have in common.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// The name of the column of Experiment::size, whose numbers unet_of() takes.
constexpr char kUnetSize[] = "(B, C)";

// U-Net of depth 5 with B convolutions per cell and C channels at its top, as
// in torchgpipe's benchmarks.
torch::nn::Sequential unet_of(const Experiment& experiment);

}  // namespace gpipe::benchmarks
