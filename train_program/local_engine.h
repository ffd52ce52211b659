// An Engine in one process, which uses GPipe.
#pragma once

#include <memory>

#include "train_program/engine.h"

namespace gpipe::trainer {

// Returns a group of only this process. Throws c10::ValueError if the options
// need several processes.
std::unique_ptr<Meeting> meet_alone(const EngineOptions& options);

}  // namespace gpipe::trainer
