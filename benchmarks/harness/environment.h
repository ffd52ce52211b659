// What a result was measured on.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe::benchmarks {

struct Environment {
  // Names and values in the order to show them: cpu, cores, threads, load
  // (cores that were at work while this program slept for a moment),
  // accelerators, gpu and driver (if NVIDIA's), libtorch, cuda and cudnn (if
  // LibTorch has them), cpu kernels (the instructions that LibTorch's use),
  // compiler, build, kernel, commit (if the program was started by `bazel run`
  // in a git checkout, or in its top folder), flags (those that differ from
  // their defaults, if any), date. Nothing names the host or the user.
  std::vector<std::pair<std::string, std::string>> facts;
  int cores = 0;  // that this process may use
  double load = 0;

  // A sentence for the reader of a table if others were using the machine; ""
  // if not. OpenMP's threads wait for each other many times per layer, so that
  // the plain model suffers far more from company than a pipeline does.
  std::string warning() const;

  // "cpu: ..., cores: ..." one per line.
  std::string to_string() const;

  // The same in one line: "cpu: ...; cores: ...".
  std::string sentence() const;
};

Environment describe_environment();

}  // namespace gpipe::benchmarks
