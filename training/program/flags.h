// The command-line flags of a training program.
#pragma once

#include <ostream>

#include "training/program/options.h"

namespace gpipe::train_program {

// Returns the values of the flags. Call it after they have been parsed.
Options options_of_flags();

// Prints examples for each kind of data, then all flags in groups, with their
// defaults.
void print_help(std::ostream& out);

}  // namespace gpipe::train_program
