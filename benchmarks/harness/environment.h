// A description of the machine and the build that a result was measured on.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace gpipe::benchmarks {

// The machine, the build and the flags of a run.
struct Environment {
  // Names and values in display order:
  // - cpu, cores, threads
  // - load: the number of cores that were busy while this program slept
  // - accelerators
  // - libtorch; cuda and cudnn if LibTorch was built with them
  // - cpu kernels: the instruction set that LibTorch's kernels use
  // - compiler, build, kernel
  // - commit, if the program was built with --stamp (commit.cc)
  // - flags: those that differ from their defaults, if any
  // - date
  //
  // No fact names the host or the user.
  std::vector<std::pair<std::string, std::string>> facts;
  int cores = 0;    // the number of cores that this process may use
  double load = 0;  // the number of cores that other work kept busy

  // Returns a warning for readers of the table if other programs were using the
  // machine (more than a quarter of the cores), otherwise "". The threads of
  // OpenMP wait for each other many times per layer, so other work slows the
  // plain model down far more than a pipeline.
  std::string warning() const;

  // Returns the facts, one per line: "cpu: ...", "cores: ...".
  std::string to_string() const;

  // Returns the facts in one line: "cpu: ...; cores: ...".
  std::string sentence() const;
};

// Collects the facts. Sleeps for 0.3 s to measure the load.
Environment describe_environment();

}  // namespace gpipe::benchmarks
