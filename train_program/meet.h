// The choice of the engine by the options.
#pragma once

#include <memory>

#include "train_program/engine.h"
#include "train_program/options.h"

namespace gpipe::trainer {

// Connects the processes of a run. With EngineOptions::distributed, finds them
// by the environment variables of a launcher (see docs/distributed.md).
// Otherwise returns a group of only this process.
//
// Throws c10::ValueError or std::invalid_argument if the options do not fit,
// and what World::connect() throws.
std::unique_ptr<Meeting> meet(const EngineOptions& options);

}  // namespace gpipe::trainer
