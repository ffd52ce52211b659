// What a result was measured on.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe::benchmarks {

struct Environment {
  // Names and values in the order to show them: cpu, cores, threads, load
  // (cores that were at work while this program slept for a moment),
  // accelerators, libtorch, compiler, build, kernel, commit (if the program was
  // started by `bazel run` in a git checkout), date. Nothing names the host or
  // the user.
  std::vector<std::pair<std::string, std::string>> facts;
  int cores = 0;  // that this process may use
  double load = 0;

  // A sentence for the reader of a table if others were using the machine; ""
  // if not. OpenMP's threads wait for each other many times per layer, so that
  // the plain model suffers far more from company than a pipeline does.
  std::string warning() const;

  // "cpu: ..., cores: ..." one per line.
  std::string to_string() const;
};

Environment describe_environment();

}  // namespace gpipe::benchmarks
