// Trains rows of the papers' tables about accuracy by the train program.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "benchmarks/accuracy.h"
#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/table.h"
#include "gpipe/base/devices.h"
#include "training/program/options.h"
#include "training/program/task.h"

DEFINE_string(experiment, "all",
              "Rows of the papers' tables to train, separated by commas: names "
              "from the list above, or all.");
DEFINE_string(scale, "auto",
              "paper: the published sizes; small: sizes that take minutes on a "
              "CPU; auto: paper if there are accelerators and a --data_dir, "
              "otherwise small.");
DEFINE_bool(dry_run, false,
            "Print the rows and their settings, and run nothing.");

namespace gpipe::benchmarks {
namespace {

constexpr char kProgram[] = "resnet101_accuracy";

constexpr char kReduced[] =
    "Reduced: small images, an eighth of each published mini-batch, a "
    "hundredth of each learning rate. The published figures are of ImageNet: "
    "compare them only with each other.";

bool given(const std::string& flag) {
  return !gflags::GetCommandLineFlagInfoOrDie(flag.c_str()).is_default;
}

// Trains a row. If it fails, sets its error, so that the other rows go on.
void run_row(const AccuracyTable& table, const train_program::Options& flags,
             AccuracyOutcome& outcome) {
  LOG(INFO) << outcome.row.experiment.name;
  try {
    const auto task = train_program::make_task(outcome.options);
    outcome.options =
        row_options(table, outcome.row, flags, given, task->train_batches());
    train_row(*task, outcome);
  } catch (const std::exception& exception) {
    outcome.error = describe(exception);
    LOG(WARNING) << outcome.row.experiment.name << " | " << outcome.error;
  }
  release_memory();
}

int run() {
  check_format();
  const train_program::Options flags = train_program::options_of_flags();
  auto devices = parse_devices(flags.devices);
  if (devices.empty()) devices = all_devices();
  const bool small =
      parse_scale(FLAGS_scale, Mode::kMeasure,
                  !devices.front().is_cpu() && !flags.data_dir.empty());
  const AccuracyTable table = accuracy_table(small);
  std::vector<Experiment> all;
  for (const AccuracyRow& row : table.rows) all.push_back(row.experiment);

  std::vector<AccuracyOutcome> outcomes;
  for (const Experiment& chosen : select_experiments(all, FLAGS_experiment)) {
    AccuracyOutcome& outcome = outcomes.emplace_back();
    outcome.row = *std::find_if(table.rows.begin(), table.rows.end(),
                                [&](const AccuracyRow& row) {
                                  return row.experiment.name == chosen.name;
                                });
    outcome.error = outcome.row.left_out;
    if (!outcome.error.empty()) continue;
    outcome.options =
        row_options(table, outcome.row, flags, given, /*steps=*/0);
    try {
      devices_for(outcome.options.partitions, devices);
    } catch (const MissingDevices& missing) {
      outcome.error = missing.what();
    }
  }
  const Environment environment = describe_environment();
  LOG(INFO) << environment.to_string();
  bool ran = FLAGS_dry_run, failed = false;
  for (AccuracyOutcome& outcome : outcomes) {
    if (FLAGS_dry_run || !outcome.error.empty()) continue;
    run_row(table, flags, outcome);
    (outcome.error.empty() ? ran : failed) = true;
  }
  Table result = accuracy_rows_table(outcomes);
  if (FLAGS_dry_run) result.notes.emplace_back("A dry run: nothing was run.");
  if (small) result.notes.emplace_back(kReduced);
  print_table(result, kProgram, environment);
  return failed || !ran ? kFailed : kOk;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  gpipe::benchmarks::Program program{
      gpipe::benchmarks::kProgram,
      "trains ResNet-101 on images as the rows of the papers'\ntables do, and "
      "prints the top-1 error on held-out images beside the published\n"
      "figures, and a checksum of the result, which is the same for any "
      "number of\npartitions. The flags of //examples:train (see its --help) "
      "replace the values\nof the rows.",
      {"--experiment=pipeline-256,pipeline-1k",
       "--experiment=pipeline-256 --data_dir=$HOME/cifar-10-batches-bin "
       "--epochs=30",
       "--experiment=pipeline-256 --partitions=4 --balance=92,92,93,93",
       "--data_dir=$HOME/imagenet --dry_run --scale=paper"}};
  for (const auto& row :
       gpipe::benchmarks::accuracy_table(/*small=*/false).rows) {
    program.experiments.push_back(row.experiment.name);
  }
  return gpipe::benchmarks::run_program(argc, argv, program,
                                        gpipe::benchmarks::run);
}
