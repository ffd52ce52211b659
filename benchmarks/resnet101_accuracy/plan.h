// The trainings that the flags of resnet101_accuracy ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/settings.h"
#include "train_program/options.h"

namespace gpipe::benchmarks {

// The learning rate of Goyal et al. (arXiv 1706.02677). It grows linearly from
// `warmup_from` to `base` over the first `warmup_epochs`. Then each milestone
// divides it by 10.
struct LearningRate {
  double base = 0.1;
  double warmup_from = 0.1;
  double warmup_epochs = 0;
  std::vector<int64_t> milestones;  // epochs, counted from 0

  // Returns the factors of `base` as the text of a LearningRateSchedule
  // (training/learning_rate.h). `steps`: per epoch.
  std::string schedule(int64_t steps) const;
};

// Returns the milestones 30, 60 and 80 of 90 epochs, scaled to `epochs` and
// rounded up.
std::vector<int64_t> usual_milestones(int64_t epochs);

// The settings of one training.
struct AccuracyPlan {
  Experiment experiment;  // if its balance is empty: cut by measured time
  // Those of the train program, except for what `experiment` and `rate` have.
  train_program::Options options;
  LearningRate rate;
  std::string left_out;  // the reason not to run it; "" if it is run
  std::optional<int64_t> published_devices;  // see AccuracyRow::devices
};

// The values of the flags.
struct AccuracyOptions {
  Settings settings;
  // The plans of the rows that --experiment selects. Without --experiment, one
  // plan that the other flags describe.
  std::vector<AccuracyPlan> plans;
  bool rows_of_papers = false;    // true if --experiment is given
  bool small = false;             // --scale: the size of the papers' rows
  std::string data_dir;           // "": generated shapes
  bool published = true;          // add the published figures to the table
  bool plan_only = false;         // --dry_run
  bool environment_only = false;  // --env
};

// Returns the values of the flags. A flag on the command line replaces the
// value of the paper's row. Throws std::invalid_argument if a flag has an
// invalid value.
AccuracyOptions parse_accuracy_options();

}  // namespace gpipe::benchmarks
