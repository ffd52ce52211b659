// The agreement of the processes of a run about their flags and data.
#pragma once

#include "training/program/engine.h"
#include "training/program/run_flags.h"

namespace gpipe::train_program {

// Throws c10::ValueError in all processes if `mine` differs between them, see
// check_same_flags(). All processes call this.
void check_same_in_all(const RunProcesses& processes, const FlagValues& mine);

}  // namespace gpipe::train_program
