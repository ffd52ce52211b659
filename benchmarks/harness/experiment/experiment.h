// An experiment: one row of a table, as data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/schedule/microbatches.h"

namespace gpipe::benchmarks {

// The settings of one row of a table, with its published figures.
struct Experiment {
  std::string name;        // the name in the paper
  int64_t partitions = 0;  // 0: the plain model, without a pipeline
  int64_t batch_size = 0;  // samples per mini-batch
  int64_t chunks = 1;      // micro-batches per mini-batch
  // Layers per partition. Empty: chosen by the mode of the run (measured or
  // profiled times, or bytes of parameters in a dry run).
  std::vector<int64_t> balance;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  // Published figures, in the order of Benchmark::published.
  std::vector<std::optional<double>> published;
  // The size of the model, such as (L, D), if the experiments of the table
  // differ in it.
  std::vector<int64_t> size;
  // The experiment whose speed-up is 1; "": Benchmark::base.
  std::string base;
};

// Returns the experiments that `names` ("a, b") lists, in the order of `all`.
// The name "all", alone or among others, selects every experiment.
//
// Throws std::invalid_argument with the known names if a name is unknown, or if
// `names` is empty.
std::vector<Experiment> select_experiments(const std::vector<Experiment>& all,
                                           const std::string& names);

}  // namespace gpipe::benchmarks
