// An experiment is a row of data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/runtime/checkpoint.h"

namespace gpipe::benchmarks {

struct Experiment {
  std::string name;        // as in the paper
  int64_t partitions = 0;  // 0: the plain model, without a pipeline
  int64_t batch_size = 0;
  int64_t chunks = 1;
  std::vector<int64_t> balance;  // empty: by balance_by_time
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  // Of others, in the order of the benchmark's columns for them.
  std::vector<std::optional<double>> published;
  // Of the model, where the experiments of a table differ in it: (L, D).
  std::vector<int64_t> size;
  // The experiment with a speed-up of 1; "": the benchmark's.
  std::string base;
};

// Of `all`, those that `names` ("a, b") lists, in the order of `all`; "all",
// alone or among others, is every one. std::invalid_argument, with the names
// that exist, for one that does not.
std::vector<Experiment> select_experiments(const std::vector<Experiment>& all,
                                           const std::string& names);

// "always", "except_last", "never".
Checkpoint parse_checkpoint(const std::string& text);

}  // namespace gpipe::benchmarks
