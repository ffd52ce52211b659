// What the flags of resnet101_accuracy ask for.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/learning_rate.h"
#include "benchmarks/harness/settings.h"
#include "data/augment.h"

namespace gpipe::benchmarks {

// One training, with the meaning of the flags worked out.
struct AccuracyPlan {
  Experiment experiment;  // an empty balance: cut by measured time
  std::vector<c10::Device> devices;
  int64_t threads_per_partition = 1;
  int64_t epochs = 0;
  int64_t limit = 0;  // training images per epoch; 0: all
  data::AugmentOptions augment;
  LearningRate rate;
  double momentum = 0;
  double weight_decay = 0;
  uint64_t seed = 0;
  std::string left_out;  // why it is not to be run; "" if it is
  std::optional<int64_t> published_devices;  // as AccuracyRow::devices
};

struct AccuracyOptions {
  Settings settings;
  // As many as --experiment chooses; without it one, which the other flags
  // describe.
  std::vector<AccuracyPlan> plans;
  bool rows_of_papers = false;  // whether --experiment was given
  bool small = false;           // --scale, of the rows of the papers
  std::string data_dir;         // "": drawn shapes
  double held_out = 0;
  bool published = true;
  bool plan_only = false;         // --dry_run
  bool environment_only = false;  // --env
};

// A flag that is on the command line takes the place of what the row of a
// paper says. std::invalid_argument for a value without sense.
AccuracyOptions parse_accuracy_options();

}  // namespace gpipe::benchmarks
