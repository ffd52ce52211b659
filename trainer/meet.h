// Which engine the options ask for.
#pragma once

#include <memory>

#include "trainer/engine.h"
#include "trainer/options.h"

namespace gpipe::trainer {

// With EngineOptions::distributed: found by the variables of a launcher, see
// docs/distributed.md; else this process alone.
//
// Errors: c10::ValueError and std::invalid_argument for options that do not
// fit, those of World::connect, GPipe and DistributedPipeline.
std::unique_ptr<Meeting> meet(const EngineOptions& options);

}  // namespace gpipe::trainer
