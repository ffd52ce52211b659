// The main() of a program with LibTorch: its flags, errors and exit codes.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace gpipe {

// Returns the text of an error, without LibTorch's backtrace.
std::string error_text(const std::exception& error);

// Returns whether flags or data of the user have caused the error: whether it
// is a c10::ValueError, a c10::IndexError or a std::invalid_argument.
bool is_of_user(const std::exception& error);

// Begins the program, reads the flags (see program.h) and calls `body`. Returns
// the exit code: 0 after `body` or --help; 1 after an error of the user, else
// `failed`. Prints an error as one line on stderr.
//
// `name`: of the program, for errors. `usage`, `folder`: see read_flags().
int run_main(int argc, char** argv, const std::string& name,
             const std::string& usage, const std::string& folder,
             const std::function<void()>& body, int failed = 2);

}  // namespace gpipe
