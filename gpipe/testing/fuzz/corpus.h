// Reads the corpus and the dictionary of a fuzz target.
#pragma once

#include <string>
#include <vector>

namespace gpipe::testing {

// Returns the bytes of each file of a folder, ordered by name. Throws
// std::invalid_argument with the path if a file cannot be read or the folder
// has no files.
std::vector<std::string> read_corpus(const std::string& folder);

// Returns the words of a dictionary in libFuzzer's format. A line is `"word"`
// or `name="word"`; words may contain \\, \" and \xAB. Empty lines and lines
// that begin with # are ignored. Throws std::invalid_argument with the line for
// other lines.
std::vector<std::string> read_dictionary(const std::string& path);

}  // namespace gpipe::testing
