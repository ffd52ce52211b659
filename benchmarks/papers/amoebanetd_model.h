// The models of the tables about AmoebaNets.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/workloads.h"
#include "models/amoebanet.h"

namespace gpipe::benchmarks {

// The name of the column for Experiment::size. Its numbers are the arguments of
// amoebanetd_of().
constexpr char kAmoebaNetSize[] = "(L, D)";

// Returns an AmoebaNet-D of L normal cells and D filters for ImageNet's
// classes. (L, D) is `experiment.size`.
inline torch::nn::Sequential amoebanetd_of(const Experiment& experiment) {
  return models::amoebanetd(kImageNetClasses, experiment.size.at(0),
                            experiment.size.at(1));
}

}  // namespace gpipe::benchmarks
