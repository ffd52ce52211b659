#include "benchmarks/harness/run.h"

#include <ATen/Parallel.h>
#include <absl/strings/str_split.h>
#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/dry_run.h"
#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/outcome_table.h"
#include "benchmarks/harness/pictures.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/simulate.h"
#include "gpipe/base/text.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/world.h"
#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

std::string sizes_note(const Benchmark& benchmark, const RunOptions& options) {
  const Workload& workload = options.workload(benchmark);
  std::string text =
      (options.small ? "Reduced: " : "As published: ") + workload.text + ".";
  const auto& rows = options.experiments;
  const bool equal = std::ranges::all_of(rows, [&](const Experiment& row) {
    return row.batch_size == rows.front().batch_size;
  });
  if (rows.size() > 1 && equal) {
    text += " The same mini-batch in every row.";
  } else if (!equal && options.rows.same_batch) {
    text += " Every row has the mini-batch of its base.";
  }
  return text;
}

std::string measured_note(const Benchmark& benchmark,
                          const RunOptions& options) {
  const std::string epochs = "epochs " +
                             std::to_string(options.skip_epochs + 1) + " to " +
                             std::to_string(options.epochs);
  if (benchmark.table_kind == TableKind::kMemory) {
    return "Measured over " + std::to_string(options.epochs) +
           " training steps: the peak memory of all tensors.";
  }
  return "Measured: median, smallest and largest of " + epochs + ", of " +
         std::to_string(options.samples) +
         " samples each, with all devices idle at start and end.";
}

void add_devices_notes(const RunOptions& options, bool tells_speed,
                       std::vector<std::string>* notes) {
  const auto& devices = options.settings.devices;
  if (options.world) {
    notes->push_back(
        "Each partition is a process with its own memory; memory is the sum "
        "over all processes.");
    if (tells_speed && devices.front().is_cpu()) {
      notes->push_back(
          "On CPUs: the baseline has the threads that all processes share.");
    }
    return;
  }
  if (devices.front().is_cpu()) {
    notes->push_back(
        tells_speed
            ? "On CPUs: all partitions share the " +
                  std::to_string(at::get_num_threads()) +
                  " threads that the baseline has alone, so a speed-up of 1 "
                  "would be a pipeline without any cost. Recomputing adds "
                  "about a third of the work. All partitions share one memory."
            : "On CPUs: all partitions share one memory.");
    return;
  }
  const bool shared =
      std::ranges::any_of(devices, [&](const c10::Device& device) {
        return std::ranges::count(devices, device) > 1;
      });
  if (shared) {
    notes->push_back("Partitions share a device: " +
                     std::string(tells_speed
                                     ? "speeds do not show the gain of more "
                                       "devices, and "
                                     : "") +
                     "its memory is the sum over its partitions.");
  }
}

std::string seed_note(const Settings& settings) {
  return "Seed " + std::to_string(settings.seed) +
         (settings.deterministic ? ", deterministic kernels only." : ".");
}

// Returns true if the table shows a published figure; see outcome_table().
bool shows_published(const Benchmark& benchmark, bool speed) {
  return std::ranges::any_of(benchmark.published,
                             [speed](const PublishedColumn& column) {
                               return is_speed(column.figure) == speed;
                             });
}

}  // namespace

std::vector<std::string> notes_for(const Benchmark& benchmark,
                                   const RunOptions& options) {
  const bool speed = tells_speed(benchmark, options.mode);
  const Workload& workload = options.workload(benchmark);
  std::vector<std::string> notes{sizes_note(benchmark, options)};
  switch (options.mode) {
    case Mode::kMeasure:
      notes.push_back(measured_note(benchmark, options));
      add_devices_notes(options, speed, &notes);
      notes.push_back(seed_note(options.settings));
      break;
    case Mode::kSimulate:
      notes.emplace_back(
          "Simulated: one step with a device per partition, without the loss "
          "and the optimizer.");
      break;
    case Mode::kDryRun:
      notes.emplace_back(
          "Dry-run: one training step on tensors that have a shape but no "
          "memory, with a device per partition and one cell at a time. Bytes "
          "are those that tensors request on a CPU, with the workspaces of "
          "convolutions as with AVX-512. The workspaces of an accelerator's "
          "kernels, and the cache and rounding of its allocator, are not "
          "included.");
      break;
  }
  if (!speed) {
    notes.emplace_back(
        "Memory is the sum over all devices, except for \"largest device\". "
        "Model memory: parameters, gradients and the optimizer's state. Total "
        "memory: the peak of everything. Activations: the total memory without "
        "model memory and buffers.");
  }
  if (options.world) {
    notes.emplace_back(
        "A step of a pipeline is train_step(), with a loss per micro-batch.");
  } else {
    notes.insert(notes.end(), workload.notes.begin(), workload.notes.end());
  }
  if (!shows_published(benchmark, speed)) return notes;
  if (options.small) {
    notes.emplace_back(
        "Published figures are of other machines and sizes: compare only the "
        "ratios.");
  }
  notes.insert(notes.end(), benchmark.notes.begin(), benchmark.notes.end());
  return notes;
}

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
    return measure(benchmark_, workload_, experiment, options_, &balancers_);
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
          [](const RunOptions& options, auto* rows) {
            set_devices(options.settings.devices, rows);
          },
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
