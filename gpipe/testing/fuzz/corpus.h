// The files beside a fuzz target.
#pragma once

#include <string>
#include <vector>

namespace gpipe::testing {

// The bytes of each file of a folder, by the order of their names.
// std::invalid_argument, naming it, for one that cannot be read, and for a
// folder without files.
std::vector<std::string> read_corpus(const std::string& folder);

// The words of a dictionary as libFuzzer reads it: lines of `"word"`, or
// `name="word"`, with \\, \" and \xAB in the words; empty lines and those that
// begin with # say nothing. std::invalid_argument, with the line, for others.
std::vector<std::string> read_dictionary(const std::string& path);

}  // namespace gpipe::testing
