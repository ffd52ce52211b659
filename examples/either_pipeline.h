// The pipeline of an example. It runs in this process or, with --distributed,
// in several processes. Each of them runs the example and holds one partition.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpipe/distributed/world.h"
#include "gpipe/pipeline_module.h"

namespace examples {

// Returns the processes of --distributed once all are there; null without it.
std::shared_ptr<gpipe::World> connect();

// Returns a GPipe with --partitions or, with a `world`, a DistributedPipeline.
//
// `balance`: returns the layers per partition for a number of partitions. With
// several processes only rank 0 calls it, since each process could measure
// different times.
std::shared_ptr<gpipe::PipelineModule> make_pipeline(
    const std::shared_ptr<gpipe::World>& world, torch::nn::Sequential model,
    const std::function<std::vector<int64_t>(int64_t partitions)>& balance);

// Reads the flags, runs an example and returns the exit code of main(): 1 if
// flags or data are wrong, 2 after another error. Prints errors on stderr.
int run_example(int argc, char** argv, const char* name, const char* about,
                const std::function<void()>& run);

}  // namespace examples
