// An Engine in one process, which uses GPipe.
#pragma once

#include <memory>

#include "train_program/engine.h"

namespace gpipe::train_program {

// Returns a maker for a run in this process alone. Throws c10::ValueError if
// the options need several processes.
std::unique_ptr<EngineMaker> use_one_process(const Options& options);

}  // namespace gpipe::train_program
