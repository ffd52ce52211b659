// The command-line flags of a training program.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "train_program/options.h"

namespace gpipe::trainer {

// Returns the values of the flags. Call it after they have been parsed.
Options options_of_flags();

// Prints examples for each kind of data, then all flags in groups, with their
// defaults.
void print_help(std::ostream& out);

// Returns the names of all flags defined in flags.cc, in the order of the help.
std::vector<std::string> flags_in_help();

}  // namespace gpipe::trainer
