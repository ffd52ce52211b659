#include "benchmarks/harness/run.h"

#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/device_memory.h"
#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/dry_run.h"
#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/notes.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/outcome_table.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/parameter_balance.h"
#include "benchmarks/harness/pictures.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/run_options.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/simulate.h"
#include "benchmarks/harness/table.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/world.h"
#include "gpipe/meta.h"
#include "gpipe/text/refuse.h"

namespace gpipe::benchmarks {
namespace {

// A run of experiments in the selected mode.
class Run {
 public:
  Run(const Benchmark& benchmark, const RunOptions& options)
      : benchmark_(benchmark),
        options_(options),
        workload_(options.workload(benchmark)) {
    if (options.mode == Mode::kSimulate) {
      simulator_.emplace(benchmark, workload_, options.simulate);
    }
  }

  Outcome find(const Experiment& experiment) {
    switch (options_.mode) {
      case Mode::kSimulate:
        return simulator_->simulate(experiment);
      case Mode::kDryRun:
        return dry_run(benchmark_, workload_, with_balance(experiment));
      case Mode::kMeasure:
        break;
    }
    return measure(
        benchmark_, workload_, experiment,
        {options_.settings.devices, options_.samples, options_.epochs,
         options_.skip_epochs, options_.settings.seed, options_.world},
        &balancers_);
  }

  // Returns the notes that are known only after all experiments have run.
  std::vector<std::string> notes() const {
    if (simulator_) return simulator_->notes();
    if (!cut_by_parameters_) return {};
    return {
        "Balances that were not given are cut by bytes of parameters: a "
        "dry run has no times."};
  }

 private:
  // Returns the experiment with a balance for a dry run: its own, or a cut by
  // parameters.
  Experiment with_balance(Experiment experiment) {
    if (experiment.partitions == 0 || !experiment.balance.empty()) {
      return experiment;
    }
    const MetaGuard meta;
    experiment.balance = balance_by_parameters(benchmark_.model(experiment),
                                               experiment.partitions);
    if (experiment.partitions > 1) cut_by_parameters_ = true;
    return experiment;
  }

  const Benchmark& benchmark_;
  const RunOptions& options_;
  const Workload& workload_;
  std::optional<Simulator> simulator_;
  Balancers balancers_;
  bool cut_by_parameters_ = false;  // true if any row was
};

// Returns the outcome of an experiment that has not run or has failed.
Outcome unknown(const Experiment& experiment, Mode mode) {
  Outcome outcome;
  outcome.experiment = experiment;
  outcome.mode = mode;
  return outcome;
}

void log_lines(const std::string& text) {
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    LOG(INFO) << text.substr(at, end - at);
    at = end + 1;
  }
}

// Throws std::invalid_argument if an epoch would have less than a mini-batch.
void check_samples(const Benchmark& benchmark, const RunOptions& options) {
  if (benchmark.table_kind == TableKind::kMemory ||
      options.mode != Mode::kMeasure) {
    return;
  }
  for (const auto& row : options.experiments) {
    if (options.samples >= row.batch_size) continue;
    internal::refuse("an epoch has ", options.samples, " samples, but ",
                     row.name, " has a mini-batch of ", row.batch_size,
                     "; give more --samples or a smaller --batch_size");
  }
}

int print_plan(const Benchmark& benchmark, const RunOptions& options) {
  std::vector<Outcome> rows;
  for (const auto& experiment : options.experiments) {
    Outcome& row = rows.emplace_back(unknown(experiment, options.mode));
    if (options.mode != Mode::kMeasure) continue;
    try {
      row.devices =
          devices_text(devices_for(std::max<int64_t>(1, experiment.partitions),
                                   options.settings.devices));
    } catch (const MissingDevices& missing) {
      row.error = missing.what();
    }
  }
  Table table = plan_table(benchmark, options.mode, rows);
  table.notes = notes_for(benchmark, options);
  print_table(table, benchmark.program.name, describe_environment());
  return kOk;
}

int run_table(const Benchmark& benchmark) {
  check_format();
  const RunOptions options = parse_run_options(benchmark);
  if (options.environment_only) {
    print_environment(benchmark.program.name, describe_environment());
    return kOk;
  }
  check_samples(benchmark, options);
  const Pictures pictures;
  if (pictures.wants_timelines() && options.mode != Mode::kSimulate) {
    internal::refuse("--timeline is for --mode=simulate; this run is ",
                     to_string(options.mode));
  }
  if (options.plan_only) return print_plan(benchmark, options);
  use_kernels(options.settings);

  const Environment environment = describe_environment();
  log_lines(environment.to_string());
  auto notes = notes_for(benchmark, options);
  for (const auto& note : notes) LOG(INFO) << note;
  Run run(benchmark, options);
  std::vector<Outcome> outcomes;
  bool failed = false;
  bool ran = false;
  for (const auto& experiment : options.experiments) {
    LOG(INFO) << experiment.name << " | " << to_string(options.mode);
    Outcome outcome = unknown(experiment, options.mode);
    try {
      outcome = run.find(experiment);
      outcome.mode = options.mode;
      ran = true;
      if (options.world) all_gather(*options.world, "", kMeasuring);
    } catch (const MissingDevices& missing) {
      outcome.error = missing.what();
    } catch (const std::exception& exception) {
      outcome.error = describe(exception);
      failed = true;
      // The row fails on the other ranks, too, and so do all later rows, since
      // the ranks are no longer at the same row.
      if (const auto& world = options.world) {
        world->fail(kMeasuring, outcome.error);
      }
    }
    if (!outcome.error.empty()) {
      LOG(WARNING) << experiment.name << " | " << outcome.error;
    }
    outcomes.push_back(std::move(outcome));
    release_memory();
  }

  if (options.world && options.world->rank() > 0) return failed ? kFailed : kOk;
  Table table = outcome_table(benchmark, options.mode, outcomes);
  for (const auto& note : run.notes()) notes.push_back(note);
  const auto warning = environment.warning();
  if (options.mode != Mode::kDryRun && !warning.empty()) {
    notes.push_back(warning);
  }
  table.notes = std::move(notes);
  print_table(table, benchmark.program.name, environment);
  pictures.write(benchmark, options.mode, outcomes);
  return failed || !ran ? kFailed : kOk;
}

}  // namespace

int run_benchmark(int argc, char** argv, const Benchmark& benchmark) {
  Program program = benchmark.program;
  for (const auto& experiment : benchmark.paper.experiments) {
    program.experiments.push_back(experiment.name);
  }
  return run_program(argc, argv, program, [&] { return run_table(benchmark); });
}

}  // namespace gpipe::benchmarks
