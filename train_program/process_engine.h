// An Engine for one of several processes, which uses DistributedPipeline.
#pragma once

#include <memory>

#include "train_program/engine.h"

namespace gpipe::trainer {

// Connects the processes of a run. Blocks until all are there. Throws what
// World::connect() throws.
std::unique_ptr<Meeting> meet_processes(const EngineOptions& options);

}  // namespace gpipe::trainer
