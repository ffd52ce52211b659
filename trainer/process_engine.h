// The engine of a process among others: a DistributedPipeline.
#pragma once

#include <memory>

#include "trainer/engine.h"

namespace gpipe::trainer {

// Waits for the others.
std::unique_ptr<Meeting> meet_processes(const EngineOptions& options);

}  // namespace gpipe::trainer
