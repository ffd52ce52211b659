// The flags of a program, by gflags. No LibTorch.
#pragma once

#include <string>

namespace gpipe {

// Reads all --name=value, and leaves in argc and argv what is none. Answers
// gflags' own --help, with `usage` and the flags of files whose path has
// `folder` in it, and returns false then: there is nothing more to do. Ends the
// process after --helpfull, --version and the like, and, with 1 and a line, for
// a flag that is not known or a value of a wrong type. For main(), before
// it starts threads: gflags' values have no locks.
bool read_flags(int* argc, char*** argv, const std::string& usage,
                const char* folder);

}  // namespace gpipe
