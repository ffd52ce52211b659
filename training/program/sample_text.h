// A text that the model of a run writes.
#pragma once

#include <cstdint>
#include <string>

#include "training/program/engine.h"
#include "training/program/options.h"
#include "training/program/precision.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Throws c10::ValueError if Options::sample is negative, or if it is positive
// and the data is no text.
void check_sample(const Options& options, const Task& task);

// Returns Options::sample characters that the model writes after the first ones
// of the test data, with those. Each is drawn with the temperature 0.8, from a
// generator that depends on Options::seed and `step` only. The module is in
// evaluation mode during the call and returns to its mode after. All processes
// call this, and get the same text.
std::string sample_text(Engine& engine, Task& task, const Options& options,
                        const Precision& precision, int64_t step);

}  // namespace gpipe::train_program
