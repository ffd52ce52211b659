// Parses the flags of a program with gflags. No LibTorch.
#pragma once

#include <string>

namespace gpipe {

// Parses all --name=value and removes them from argc and argv. For --help,
// prints `usage` and the flags of files whose path contains `folder`, and
// returns false: the program should end then. Otherwise returns true.
//
// Ends the process after --helpfull, --version and similar flags. Also ends it,
// with status 1 and a line of text, if a flag is unknown or a value has a wrong
// type.
// Threads: call it from main() before threads start, because gflags' values
// have no locks.
bool read_flags(int* argc, char*** argv, const std::string& usage,
                const char* folder);

}  // namespace gpipe
