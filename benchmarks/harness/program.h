// What every benchmark's main() does around its work.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

// Exit codes of every program here.
constexpr int kOk = 0;
constexpr int kUsage = 1;   // a flag that is unknown or has no sense
constexpr int kFailed = 2;  // the run, or a row of its table

struct Program {
  std::string name;                   // of the Bazel target
  std::string about;                  // lines for --help
  std::vector<std::string> examples;  // flags, without the program's name
  // For --help: what --experiment chooses from; empty if there is no such flag.
  std::vector<std::string> experiments = {};
};

// Reads flags, answers --help (status 0, on stdout), starts glog on stderr and
// runs `body`, whose result is the exit code. std::invalid_argument from it is
// a usage error, any other exception a failed run; both are told in a line on
// stderr. Everything but results goes to stderr.
int run_program(int argc, char** argv, const Program& program,
                const std::function<int()>& body);

// One line for people: without LibTorch's stack traces, and "out of memory: "
// in front where it is that.
std::string describe(const std::exception& error);

}  // namespace gpipe::benchmarks
