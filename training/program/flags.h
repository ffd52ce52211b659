// The command-line flags of a training program.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "training/program/options.h"

namespace gpipe::train_program {

// Returns the values of the flags. Call it after they have been parsed.
Options options_of_flags();

// Throws c10::ValueError if the command line sets a flag of a training run that
// is not in `names`. For programs that use some of these flags.
void check_flags(const std::vector<std::string>& names);

// Prints the flags in `names` with their defaults.
void print_flags(std::ostream& out, const std::vector<std::string>& names);

// Prints examples for each kind of data, then all flags in groups, with their
// defaults.
void print_help(std::ostream& out);

}  // namespace gpipe::train_program
