// An Engine for one of several processes, which uses DistributedPipeline.
#pragma once

#include <memory>

#include "train_program/engine.h"

namespace gpipe::train_program {

// Connects the processes of a run, which it finds by the environment variables
// of a launcher (see docs/distributed.md). Blocks until all are there.
//
// Throws c10::ValueError or std::invalid_argument if the options do not fit,
// and what World::connect() throws.
std::unique_ptr<EngineMaker> connect_processes(const Options& options);

}  // namespace gpipe::train_program
