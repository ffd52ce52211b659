// The flags of all tables: how a pipeline is trained, and which rows run in
// which way.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/simulate.h"
#include "gpipe/distributed/world.h"

namespace gpipe::benchmarks {

// The values of the flags. A member without a value leaves the choice to the
// experiment.
struct Settings {
  std::vector<c10::Device> devices;  // --devices, or those of the machine
  std::optional<int64_t> batch_size;
  std::optional<int64_t> chunks;
  bool balance_by_time = false;  // --balance=auto
  std::vector<int64_t> balance;  // --balance=3,4
  std::optional<Checkpoint> checkpoint;
  std::optional<int64_t> epochs;
  uint64_t seed = 0;
  bool deterministic = false;
};

// Returns the values of the flags. Throws std::invalid_argument if a flag has
// an invalid value.
Settings parse_settings();

// Throws std::invalid_argument if the entries of --balance do not add up to
// `layers`, the number of layers of the model.
void check_layers(const Settings& settings, int64_t layers);

// If `deterministic` is set, makes LibTorch use deterministic kernels for the
// rest of the process. An operator without one throws.
void use_kernels(const Settings& settings);

// Returns `experiment` with its values replaced by those of `settings`. A
// balance applies only if it has as many entries as the experiment has
// partitions. If the experiment has 0 partitions, only its batch size changes.
Experiment apply(const Settings& settings, Experiment experiment);

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

// The values of the flags. Flags at their defaults take the values of the
// benchmark.
struct RunOptions {
  Settings settings;
  RowOptions rows;
  Mode mode = Mode::kMeasure;
  bool small = false;
  std::vector<Experiment> experiments;  // selected and changed by the flags
  int64_t samples = 0;                  // per epoch of a speed table
  int64_t epochs = 1;
  int64_t skip_epochs = 0;
  SimulateOptions simulate;
  bool plan_only = false;         // --dry_run
  bool environment_only = false;  // --env
  // The processes of --distributed, if an experiment will run. All run the same
  // program with the same flags. A row with a pipeline has one partition in
  // each process. A row without one runs on rank 0 alone, while the others
  // wait. Rank 0 prints the table.
  std::shared_ptr<World> world;

  const Workload& workload(const Benchmark& benchmark) const {
    return small ? benchmark.small : benchmark.paper;
  }
};

// Returns the options. With --measure_links it measures the links of a
// simulation; with --distributed it blocks until all ranks are connected.
//
// Throws std::invalid_argument if a flag has an invalid value, and what
// World::connect() throws.
RunOptions parse_run_options(const Benchmark& benchmark);

}  // namespace gpipe::benchmarks
