// What the tables on AmoebaNets have in common.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// The name of the column of Experiment::size, whose numbers amoebanetd_of()
// takes.
constexpr char kAmoebaNetSize[] = "(L, D)";

// AmoebaNet-D of L normal cells and D filters, for the classes of ImageNet.
torch::nn::Sequential amoebanetd_of(const Experiment& experiment);

}  // namespace gpipe::benchmarks
