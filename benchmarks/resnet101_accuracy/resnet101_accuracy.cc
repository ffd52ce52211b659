// Trains ResNet-101 on images through a pipeline and prints the error on
// held-out images. The papers show this for ImageNet; this program runs at any
// size.

#include <glog/logging.h>

#include <exception>
#include <stdexcept>
#include <vector>

#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/table.h"
#include "benchmarks/resnet101_accuracy/plan.h"
#include "benchmarks/resnet101_accuracy/rows.h"
#include "benchmarks/resnet101_accuracy/table.h"
#include "benchmarks/resnet101_accuracy/train.h"
#include "train_program/make_task.h"

namespace gpipe::benchmarks {
namespace {

constexpr char kProgram[] = "resnet101_accuracy";

// Trains on the images that `plan` describes.
AccuracyResult train(const AccuracyPlan& plan) {
  const auto task = train_program::make_task(plan.options);
  return train_accuracy(plan, *task);
}

// Trains one row of --experiment. If the row fails or is left out, sets its
// error, so that the other rows go on.
AccuracyOutcome run_row(const AccuracyPlan& plan) {
  AccuracyOutcome outcome;
  outcome.plan = plan;
  outcome.error = plan.left_out;
  if (outcome.error.empty()) {
    LOG(INFO) << plan.experiment.name;
    try {
      outcome.result = train(plan);
    } catch (const std::exception& exception) {
      outcome.error = describe(exception);
    }
  }
  if (!outcome.error.empty()) {
    LOG(WARNING) << plan.experiment.name << " | " << outcome.error;
  }
  release_memory();
  return outcome;
}

// Trains without --experiment. Errors are not caught: they end the program.
AccuracyOutcome run_by_flags(const AccuracyPlan& plan) {
  AccuracyOutcome outcome;
  outcome.plan = plan;
  outcome.result = train(plan);
  return outcome;
}

// Returns the exit code, as in run_benchmark(): rows that are left out are not
// a failure, unless no row ran.
int exit_code(const std::vector<AccuracyOutcome>& outcomes) {
  bool ran = false;
  bool failed = false;
  for (const AccuracyOutcome& outcome : outcomes) {
    if (!outcome.plan.left_out.empty()) continue;
    (outcome.error.empty() ? ran : failed) = true;
  }
  return failed || !ran ? kFailed : kOk;
}

int run() {
  check_format();
  const AccuracyOptions options = parse_accuracy_options();
  if (options.environment_only) {
    print_environment(kProgram, describe_environment());
    return kOk;
  }
  if (options.plan_only) {
    print_table(accuracy_plan_table(options), kProgram, describe_environment());
    return kOk;
  }
  const auto& plans = options.plans;
  if (!options.rows_of_papers && !plans.front().left_out.empty()) {
    throw std::runtime_error(plans.front().left_out);
  }
  use_kernels(options.settings);
  const Environment environment = describe_environment();
  LOG(INFO) << environment.to_string();

  std::vector<AccuracyOutcome> outcomes;
  for (const AccuracyPlan& plan : plans) {
    outcomes.push_back(options.rows_of_papers ? run_row(plan)
                                              : run_by_flags(plan));
  }
  Table table = options.rows_of_papers
                    ? accuracy_rows_table(options, outcomes)
                    : epochs_table(outcomes.front(), options.published);
  for (const AccuracyOutcome& outcome : outcomes) {
    if (outcome.result.data.empty()) continue;
    table.notes.insert(table.notes.begin(),
                       (options.data_dir.empty() ? "Generated shapes: " : "") +
                           outcome.result.data + ".");
    break;
  }
  for (const auto& note : table.notes) LOG(INFO) << note;
  print_table(table, kProgram, environment);
  return exit_code(outcomes);
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  gpipe::benchmarks::Program program{
      gpipe::benchmarks::kProgram,
      "trains ResNet-101 on images through a pipeline (SGD\nwith Nesterov's "
      "momentum), prints the top-1 error on held-out images per epoch and\na "
      "checksum of the result, which is the same for any number of partitions. "
      "With\n--experiment it trains rows of the papers' tables and shows the "
      "published figures.",
      {"", "--data_dir=$HOME/cifar-10-batches-bin --epochs=30",
       "--data_dir=$HOME/photos --image_size=224 --batch_size=32 --chunks=8",
       "--partitions=4 --balance=92,92,93,93",
       "--experiment=pipeline-256,pipeline-1k",
       "--data_dir=$HOME/imagenet --experiment=all --dry_run --scale=paper"}};
  for (const auto& row :
       gpipe::benchmarks::accuracy_table(/*small=*/false).rows) {
    program.experiments.push_back(row.experiment.name);
  }
  return gpipe::benchmarks::run_program(argc, argv, program,
                                        gpipe::benchmarks::run);
}
