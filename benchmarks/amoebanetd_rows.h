// The common parts of the tables about AmoebaNets.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// The name of the column for Experiment::size. Its numbers are the arguments of
// amoebanetd_of().
constexpr char kAmoebaNetSize[] = "(L, D)";

// Returns an AmoebaNet-D of L normal cells and D filters for ImageNet's
// classes. (L, D) is `experiment.size`.
torch::nn::Sequential amoebanetd_of(const Experiment& experiment);

}  // namespace gpipe::benchmarks
