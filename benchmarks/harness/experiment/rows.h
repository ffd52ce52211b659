// The rows of a run: experiments that flags select and change.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/settings.h"

namespace gpipe::benchmarks {

// The options that choose the rows of a run.
struct RowOptions {
  std::string names = "all";  // see select_experiments()
  // If true, each row gets the mini-batch of its base experiment, unless the
  // settings give a mini-batch for all rows. Papers give each row the largest
  // mini-batch that fits; the ratio of two speeds then has two causes, the
  // pipeline and the mini-batch.
  bool same_batch = false;
  // If true, the rows of with_controls() are added.
  bool control = false;
};

// Returns the rows of a run: selects experiments from `all` and applies the
// options and the settings. Keeps the order of `all`.
//
// `base`: the name of the base experiment for `same_batch`. It must be in `all`
// and need not be selected.
//
// Throws std::invalid_argument if select_experiments() does, if no selected row
// has as many partitions as the balance in the settings has entries, or if
// `same_batch` is set and there is no experiment `base`.
std::vector<Experiment> choose_rows(const std::vector<Experiment>& all,
                                    const std::string& base,
                                    const Settings& settings,
                                    const RowOptions& options);

// Returns the rows with added control rows. A control row has one partition,
// and otherwise the mini-batch, chunks, checkpoint mode and size of a row with
// several partitions. Equal rows share a control row, and no control row is
// added if such a row exists already.
//
// So a control row recomputes and has small micro-batches, but has no pipeline.
// The ratio of a pipeline row to its control row is the gain of the pipeline.
// The ratio of a control row to the base is the cost of checkpointing.
//
// A single control row is named "checkpoint-only"; several are named
// "checkpoint-only (pipeline-2)" and so on. They are inserted after the rows
// without a pipeline.
std::vector<Experiment> with_controls(std::vector<Experiment> rows);

}  // namespace gpipe::benchmarks
