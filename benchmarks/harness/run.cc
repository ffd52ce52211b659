#include "benchmarks/harness/run.h"

#include <absl/strings/str_split.h>
#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/costs/parameter_balance.h"
#include "benchmarks/harness/costs/simulate.h"
#include "benchmarks/harness/device_memory.h"
#include "benchmarks/harness/dry_run.h"
#include "benchmarks/harness/experiment/devices.h"
#include "benchmarks/harness/experiment/mode.h"
#include "benchmarks/harness/experiment/outcome.h"
#include "benchmarks/harness/experiment/program.h"
#include "benchmarks/harness/experiment/settings.h"
#include "benchmarks/harness/experiment/table.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/notes.h"
#include "benchmarks/harness/report/environment.h"
#include "benchmarks/harness/report/outcome_table.h"
#include "benchmarks/harness/report/output.h"
#include "benchmarks/harness/report/pictures.h"
#include "benchmarks/harness/run_options.h"
#include "gpipe/base/text.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/world.h"
#include "gpipe/meta.h"

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

// Sets the devices of each row, or why it is left out.
void plan_rows(const RunOptions& options, std::vector<Outcome>* rows) {
  for (Outcome& row : *rows) {
    try {
      row.devices = devices_text(
          devices_for(std::max<int64_t>(1, row.experiment.partitions),
                      options.settings.devices));
    } catch (const MissingDevices& missing) {
      row.error = missing.what();
      row.left_out = true;
    }
  }
}

// Runs each row by itself, and adds notes.
void run_rows(const Benchmark& benchmark, const RunOptions& options,
              std::vector<Outcome>* rows, std::vector<std::string>* notes) {
  Run run(benchmark, options);
  for (Outcome& row : *rows) {
    const Experiment experiment = row.experiment;
    LOG(INFO) << experiment.name << " | " << to_string(options.mode);
    try {
      row = run.find(experiment);
      row.mode = options.mode;
      if (options.world) all_gather(*options.world, "", kMeasuring);
    } catch (const MissingDevices& missing) {
      row.error = missing.what();
      row.left_out = true;
    } catch (const std::exception& exception) {
      row.error = describe(exception);
      // The row fails on the other ranks, too, and so do all later rows, since
      // the ranks are no longer at the same row.
      if (const auto& world = options.world) {
        world->fail(kMeasuring, row.error);
      }
    }
    if (!row.error.empty()) {
      LOG(WARNING) << experiment.name << " | " << row.error;
    }
    release_memory();
  }
  for (const auto& note : run.notes()) notes->push_back(note);
}

int exit_code(const std::vector<Outcome>& rows) {
  bool ran = false;
  for (const Outcome& row : rows) {
    if (row.error.empty()) ran = true;
    if (!row.error.empty() && !row.left_out) return kFailed;
  }
  return ran ? kOk : kFailed;
}

RowsInTurn one_by_one(const Benchmark& benchmark) {
  return {[&](const RunOptions& options) { check_samples(benchmark, options); },
          plan_rows,
          [&](const RunOptions& options, bool, auto* rows, auto* notes) {
            run_rows(benchmark, options, rows, notes);
          },
          nullptr};
}

int run_table(const Benchmark& benchmark, const RowsInTurn& how) {
  check_format();
  RunOptions options = parse_run_options(benchmark);
  const std::string& program = benchmark.program.name;
  if (options.environment_only) {
    print_environment(program, describe_environment());
    return kOk;
  }
  how.check(options);
  const Pictures pictures;
  if (!how.table && pictures.wants_timelines() &&
      options.mode != Mode::kSimulate) {
    internal::refuse("--timeline is for --mode=simulate; this run is ",
                     to_string(options.mode));
  }
  std::vector<Outcome> rows;
  for (const auto& experiment : options.experiments) {
    Outcome& row = rows.emplace_back();
    row.experiment = experiment;
    row.mode = options.mode;
  }
  auto notes = notes_for(benchmark, options);
  if (options.mode == Mode::kMeasure && !options.world) {
    how.plan(options, &rows);
  }
  if (options.plan_only) {
    Table table = plan_table(benchmark, options.mode, rows);
    table.notes = std::move(notes);
    print_table(table, program, describe_environment());
    return kOk;
  }
  use_kernels(options.settings);

  const Environment environment = describe_environment();
  for (const auto& line : absl::StrSplit(environment.to_string(), '\n')) {
    LOG(INFO) << line;
  }
  for (const auto& note : notes) LOG(INFO) << note;
  how.run(options, pictures.wants_timelines(), &rows, &notes);
  if (options.world && options.world->rank() > 0) return exit_code(rows);

  Table table = how.table ? how.table(rows)
                          : outcome_table(benchmark, options.mode, rows);
  const auto warning = environment.warning();
  if (options.mode != Mode::kDryRun && !warning.empty()) {
    notes.push_back(warning);
  }
  table.notes = std::move(notes);
  print_table(table, program, environment);
  pictures.write(benchmark, options.mode, rows);
  return exit_code(rows);
}

}  // namespace

int run_benchmark(int argc, char** argv, const Benchmark& benchmark) {
  return run_benchmark(argc, argv, benchmark, one_by_one(benchmark));
}

int run_benchmark(int argc, char** argv, const Benchmark& benchmark,
                  const RowsInTurn& rows_in_turn) {
  Program program = benchmark.program;
  for (const auto& experiment : benchmark.paper.experiments) {
    program.experiments.push_back(experiment.name);
  }
  return run_program(argc, argv, program,
                     [&] { return run_table(benchmark, rows_in_turn); });
}

}  // namespace gpipe::benchmarks
