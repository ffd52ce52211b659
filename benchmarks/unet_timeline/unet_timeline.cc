// The gain from each mechanism of torchgpipe (Kim et al., arXiv 2004.09910):
// U-Net in four partitions, with mechanisms switched off.

#include <c10/core/Device.h>
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/notes.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/outcome_table.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/pictures.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/run_options.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/unet_timeline/measure.h"
#include "benchmarks/unet_timeline/rows.h"
#include "benchmarks/unet_timeline/simulate.h"
#include "benchmarks/unet_timeline/table.h"

// Defined in run_options.cc.
DECLARE_string(mode);
DECLARE_int64(samples);

namespace gpipe::benchmarks {
namespace {

// Makes --mode=auto simulate if there are fewer accelerators than partitions.
// Half of the measured rows need copies between devices, and the other rows
// show little on fewer devices.
void choose_mode(int64_t partitions) {
  const auto devices = parse_settings().devices;
  const bool enough = !devices.front().is_cpu() &&
                      static_cast<int64_t>(devices.size()) >= partitions;
  if (FLAGS_mode == "auto" && !enough) FLAGS_mode = "simulate";
}

// Throws std::invalid_argument for options that other programs of the harness
// support, but this one does not.
void check(const RunOptions& options) {
  if (options.mode == Mode::kDryRun) {
    throw std::invalid_argument(
        "--mode=dry_run shows nothing about mechanisms: use simulate, which "
        "shows memory, too, or the dry run of unet_memory");
  }
  if (options.rows.control) {
    throw std::invalid_argument(
        "--control: the rows of this program differ in mechanisms, not in "
        "partitions; use unet_speed --control");
  }
  if (FLAGS_samples != 0) {
    throw std::invalid_argument(
        "--samples: an epoch of this program is one step; use --batch_size, or "
        "unet_speed --samples");
  }
  if (options.settings.balance_by_time) {
    throw std::invalid_argument(
        "--balance=auto: this program compares its rows on one cut; give four "
        "numbers, or omit --balance for torchgpipe's cut");
  }
}

// Returns the rows before they are run.
std::vector<Outcome> plan(const RunOptions& options) {
  std::vector<Outcome> rows;
  for (const Experiment& experiment : options.experiments) {
    Outcome& row = rows.emplace_back();
    row.experiment = experiment;
    row.mode = options.mode;
  }
  if (options.mode == Mode::kMeasure) {
    plan_devices(options.settings.devices, &rows);
  }
  return rows;
}

int64_t errors_of(const std::vector<Outcome>& rows) {
  return std::count_if(rows.begin(), rows.end(),
                       [](const Outcome& row) { return !row.error.empty(); });
}

int run_table(Benchmark benchmark) {
  check_format();
  choose_mode(benchmark.paper.experiments.front().partitions);
  RunOptions options = parse_run_options(benchmark);
  const std::string& program = benchmark.program.name;
  if (options.environment_only) {
    print_environment(program, describe_environment());
    return kOk;
  }
  const Pictures pictures;
  check(options);
  // An epoch is one step, for any --batch_size.
  options.samples = options.experiments.front().batch_size;
  auto notes = notes_for(benchmark, options);
  auto rows = plan(options);
  if (options.plan_only) {
    Table table = plan_table(benchmark, options.mode, rows);
    table.notes = std::move(notes);
    print_table(table, program, describe_environment());
    return kOk;
  }
  use_kernels(options.settings);

  const Environment environment = describe_environment();
  LOG(INFO) << environment.sentence();
  for (const auto& note : notes) LOG(INFO) << note;
  const int64_t left_out = errors_of(rows);
  if (options.mode == Mode::kSimulate) {
    simulate_rows(benchmark, options, &rows, &notes);
  } else {
    measure_rows(benchmark, options, pictures.wants_timelines(), &rows);
    notes.emplace_back(
        "An epoch is one step with the loss, without the optimizer. Rows take "
        "turns.");
  }
  const std::string warning = environment.warning();
  if (!warning.empty()) notes.push_back(warning);

  Table table = timeline_table(benchmark, rows);
  table.notes = std::move(notes);
  print_table(table, program, environment);
  pictures.write(benchmark, options.mode, rows);
  const int64_t errors = errors_of(rows);
  const bool all_failed = errors == static_cast<int64_t>(rows.size());
  return errors > left_out || all_failed ? kFailed : kOk;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  using gpipe::benchmarks::Benchmark;
  Benchmark benchmark = gpipe::benchmarks::timeline_benchmark();
  for (const auto& experiment : benchmark.paper.experiments) {
    benchmark.program.experiments.push_back(experiment.name);
  }
  return gpipe::benchmarks::run_program(argc, argv, benchmark.program, [&] {
    return gpipe::benchmarks::run_table(benchmark);
  });
}
