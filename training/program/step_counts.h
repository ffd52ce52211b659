// How many steps a run has, and how often it evaluates.
#pragma once

#include <cstdint>

#include "training/program/options.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Returns the number of steps of a run: Options::steps or, if that is 0, those
// of Options::epochs, at least 1. Throws c10::ValueError if steps < 0 or
// epochs < 1.
int64_t steps_of(const Options& options, const Task& task);

// Returns after how many steps a run evaluates: Options::eval_every or, if that
// is 0, an epoch.
int64_t eval_every(const Options& options, const Task& task);

}  // namespace gpipe::train_program
