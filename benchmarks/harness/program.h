// The common part of every benchmark's main(): flags, --help, logs, errors.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

// Exit codes of every program here.
constexpr int kOk = 0;
constexpr int kUsage = 1;   // a flag is unknown or has an invalid value
constexpr int kFailed = 2;  // the run, or a row of its table, failed

// The texts of a program's --help.
struct Program {
  std::string name;                   // the name of the program
  std::string about;                  // a description, may have several lines
  std::vector<std::string> examples;  // flags, without the program's name
  // The choices for --experiment; empty if the program has no such flag.
  std::vector<std::string> experiments = {};
  std::string package = "//benchmarks";  // of the Bazel target
};

// Parses the flags, starts glog on stderr, runs `body` and returns its result,
// the exit code. Prints --help to stdout and returns kOk instead, if asked for.
// Changes to the folder in which `bazel run` was started, so that relative
// paths in flags work.
//
// If `body` throws std::invalid_argument or c10::ValueError, the function
// returns kUsage; for other exceptions it returns kFailed. It prints both
// errors as one line on stderr. Only results go to stdout.
int run_program(int argc, char** argv, const Program& program,
                const std::function<int()>& body);

// Returns the first line of the error, without LibTorch's stack trace. Puts
// "out of memory: " in front if the error is one of memory.
std::string describe(const std::exception& error);

}  // namespace gpipe::benchmarks
