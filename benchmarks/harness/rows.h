// Which rows a run has: experiments chosen and changed by flags.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/settings.h"

namespace gpipe::benchmarks {

struct RowOptions {
  std::string names = "all";  // as in select_experiments()
  // Papers give each row the largest mini-batch that fits, so that a ratio of
  // speeds has two reasons. True: each has that of the base experiment, unless
  // the settings name one for all.
  bool same_batch = false;
  // Adds the rows of with_controls().
  bool control = false;
};

// Of `all`, in this order: selected, the settings applied, and with `options`.
// `base`: a name in `all`, for same_batch, also if it is not selected.
// std::invalid_argument: see select_experiments(); a balance in the settings
// that fits no row; same_batch without an experiment `base`.
std::vector<Experiment> choose_rows(const std::vector<Experiment>& all,
                                    const std::string& base,
                                    const Settings& settings,
                                    const RowOptions& options);

// The rows, and for each kind of mini-batch and checkpointing among those with
// several partitions one with a single partition and the rest as there, unless
// there is such a row already:
// recomputing and small micro-batches, without a pipeline. So the ratio of the
// two tells what the pipeline brings, and the ratio of the new row to the base
// what checkpointing costs. They are called "checkpoint-only", or
// "checkpoint-only (pipeline-2)" where there are several, and come behind the
// rows without a pipeline.
std::vector<Experiment> with_controls(std::vector<Experiment> rows);

}  // namespace gpipe::benchmarks
