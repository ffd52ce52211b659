// The cut that --plan asks for.
#pragma once

#include <string>

#include "training/program/cut.h"
#include "training/program/options.h"

namespace gpipe::train_program {

// Returns the total bytes per byte of parameters for Options::optimizer: see
// SizeOptions in balancing/balancing.h. With Options::shard_optimizer, the
// optimizer's state is divided by Options::data_parallel.
double param_scale_of(const Options& options);

// Returns the schedule and the balance of a plan (balancing/plan.h).
// Options::plan is "auto", which plans with the first mini-batch, or the path
// of a plan that //tools:plan has written as JSON. Of several processes, the
// first one plans or reads the file.
//
// Throws c10::ValueError or std::invalid_argument if the options or the file do
// not fit, and balancing::InfeasibleError if nothing fits the memory.
Cut make_planned_cut(const Options& options, const CutSources& sources);

}  // namespace gpipe::train_program
