// The engine of one process: a GPipe.
#pragma once

#include <memory>

#include "trainer/engine.h"

namespace gpipe::trainer {

// c10::ValueError for options of several processes.
std::unique_ptr<Meeting> meet_alone(const EngineOptions& options);

}  // namespace gpipe::trainer
