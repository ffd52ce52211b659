// The flags of a training program.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "trainer/options.h"

namespace gpipe::trainer {

// What the flags say, once they have been parsed.
Options options_of_flags();

// All flags in groups, with their defaults, after examples for each kind of
// data.
void print_help(std::ostream& out);

// Every flag that is defined here, in the order of the help.
std::vector<std::string> flags_in_help();

}  // namespace gpipe::trainer
