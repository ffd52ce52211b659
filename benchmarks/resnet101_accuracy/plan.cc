#include "benchmarks/resnet101_accuracy/plan.h"

#include <c10/core/Device.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/rows.h"
#include "benchmarks/resnet101_accuracy/rows.h"
#include "gpipe/meta.h"
#include "gpipe/text/format.h"
#include "gpipe/text/lists.h"
#include "models/resnet.h"

DEFINE_string(experiment, "",
              "Rows of the papers' tables to train, separated by commas: names "
              "from the list above, or all. Other flags replace the values of "
              "the rows. '': train once, with the values of the flags.");
DEFINE_string(scale, "auto",
              "With --experiment. paper: the published sizes; small: sizes "
              "that take minutes on a CPU; auto: paper if there are "
              "accelerators and a --data_dir, otherwise small.");
DEFINE_bool(dry_run, false,
            "Print the trainings and their settings, and run nothing.");
DEFINE_bool(env, false, "Print a description of the machine and the build.");
DEFINE_string(data_dir, "",
              "Folder with CIFAR-10's binary files, with train/<class>/ and "
              "test/<class>/ (or val/), or with class folders. '': shapes that "
              "the program generates.");
DEFINE_double(held_out, 0.2,
              "Part of the images for testing, if --data_dir has only class "
              "folders.");
DEFINE_int64(image_size, 32, "Height and width that images are scaled to.");
DEFINE_string(crop, "auto",
              "Crop of training images: padded (CIFAR), resized (ImageNet) or "
              "none; auto: padded up to 64 pixels, otherwise resized.");
DEFINE_int64(limit, 0, "Training images per epoch. 0: all.");
DEFINE_int64(partitions, 2, "Partitions of the pipeline.");
DEFINE_int64(threads_per_partition, 1,
             "Intra-op threads of a CPU partition. With the same value and the "
             "same --chunks, results are bit-equal for any --partitions.");
// The papers' learning rate needs the number of steps of ImageNet. With the few
// steps of a small data set, ResNet-101 with random weights does not recover
// from that rate.
DEFINE_double(lr, 0.001,
              "Learning rate. 0: that of the papers, 0.1 x max(1, batch / "
              "256).");
DEFINE_double(warmup_epochs, 1,
              "Number of epochs in which the rate grows from --warmup_lr to "
              "--lr (papers: 4 of 90).");
DEFINE_double(warmup_lr, -1,
              "Learning rate at the start of the warm-up (papers: 0.1). -1: a "
              "tenth of --lr, or 0.1 if --lr is that of the papers.");
DEFINE_string(milestones, "auto",
              "Epochs after which the rate is divided by 10, counted from the "
              "start (papers: 30,60,80 of 90). auto: in the papers' "
              "proportion.");
DEFINE_double(momentum, 0.9, "Nesterov momentum of SGD.");
DEFINE_double(weight_decay, 1e-4, "Weight decay of SGD.");
DEFINE_bool(published, true,
            "Add torchgpipe's results on ImageNet to the table.");

namespace gpipe::benchmarks {
namespace {

void check(bool sound, const std::string& text) {
  if (!sound) throw std::invalid_argument(text);
}

// Returns true if the flag is on the command line.
bool given(const char* flag) {
  return !gflags::GetCommandLineFlagInfoOrDie(flag).is_default;
}

void check_flags() {
  check(FLAGS_image_size > 0, "--image_size must be above 0");
  check(FLAGS_partitions > 0, "--partitions must be above 0");
  check(FLAGS_threads_per_partition >= 0 && FLAGS_limit >= 0 && FLAGS_lr >= 0 &&
            FLAGS_warmup_epochs >= 0,
        "--threads_per_partition, --limit, --lr and --warmup_epochs must be 0 "
        "or above");
  check(FLAGS_held_out > 0 && FLAGS_held_out < 1,
        "--held_out is a fraction: it must be above 0 and below 1");
  parse_choice("crop", FLAGS_crop, {"auto", "padded", "resized", "none"});
  if (FLAGS_experiment.empty()) {
    check(!given("scale"),
          "--scale is the size of the papers' rows; select some with "
          "--experiment, or omit --scale");
  } else {
    check(!given("partitions"),
          "--partitions=" + std::to_string(FLAGS_partitions) +
              ": the rows of --experiment have their own partitions; omit one "
              "of the two flags");
  }
}

// Returns a table with one row: the training that the flags describe if
// --experiment is not given.
AccuracyTable own_table(const Settings& settings) {
  check(settings.balance.empty() ||
            static_cast<int64_t>(settings.balance.size()) == FLAGS_partitions,
        "--balance=" + join(settings.balance) +
            " does not fit --partitions=" + std::to_string(FLAGS_partitions));
  AccuracyTable table;
  AccuracyRow& row = table.rows.emplace_back();
  row.experiment.name = "by flags";
  row.experiment.partitions = FLAGS_partitions;
  row.experiment.batch_size = 64;
  row.experiment.chunks = 4;
  row.rate = FLAGS_lr;
  table.epochs = 6;
  table.image_size = FLAGS_image_size;
  table.warmup_epochs = FLAGS_warmup_epochs;
  return table;
}

// Returns the learning rate of a row. If --lr is 0, it is that of the papers.
//
// `batch_size`, `epochs`: the values after the flags have been applied.
LearningRate rate_of(const AccuracyTable& table, const AccuracyRow& row,
                     int64_t batch_size, int64_t epochs) {
  const double lr = given("lr") ? FLAGS_lr : row.rate.value();
  const double times = std::max(1.0, static_cast<double>(batch_size) / 256);
  LearningRate rate;
  rate.base = lr > 0 ? lr : 0.1 * times;
  if (FLAGS_warmup_lr >= 0) {
    rate.warmup_from = FLAGS_warmup_lr;
  } else if (table.warmup_rate && !given("lr")) {
    rate.warmup_from = *table.warmup_rate;
  } else {
    rate.warmup_from = lr > 0 ? lr / 10 : 0.1;
  }
  rate.warmup_epochs =
      given("warmup_epochs") ? FLAGS_warmup_epochs : table.warmup_epochs;
  rate.milestones = FLAGS_milestones == "auto"
                        ? usual_milestones(epochs)
                        : parse_positive_list("milestones", FLAGS_milestones);
  return rate;
}

// Returns the plan of a row that is left out, with only the values of the
// paper.
AccuracyPlan plan_left_out(const AccuracyRow& row) {
  AccuracyPlan plan;
  plan.experiment = row.experiment;
  plan.options.epochs = 0;
  plan.rate.base = row.rate.value_or(0);
  plan.left_out = row.left_out;
  plan.published_devices = row.devices;
  return plan;
}

// Returns the plan of a row. `experiment`: the row's experiment after the flags
// have been applied.
AccuracyPlan make_plan(const AccuracyTable& table, const AccuracyRow& row,
                       const Experiment& experiment, const Settings& settings) {
  AccuracyPlan plan;
  plan.experiment = experiment;
  check(experiment.batch_size % experiment.chunks == 0,
        "--batch_size=" + std::to_string(experiment.batch_size) +
            " is not a multiple of --chunks=" +
            std::to_string(experiment.chunks) +
            ": BatchNorm would see micro-batches of unequal sizes");
  train_program::Options& options = plan.options;
  try {
    std::vector<std::string> devices;
    for (const c10::Device& device : devices_for(
             std::max<int64_t>(1, experiment.partitions), settings.devices)) {
      devices.push_back(device.str());
    }
    options.devices = join(devices, ",");
  } catch (const MissingDevices& missing) {
    plan.left_out = missing.what();
  }
  options.model = "resnet101";
  options.data_dir = FLAGS_data_dir;
  options.held_out = FLAGS_held_out;
  options.size = given("image_size") ? FLAGS_image_size : table.image_size;
  options.crop = FLAGS_crop;
  options.seed = settings.seed;
  options.epochs = settings.epochs.value_or(table.epochs);
  options.batch = experiment.batch_size;
  options.limit = FLAGS_limit;
  options.momentum = FLAGS_momentum;
  options.weight_decay = FLAGS_weight_decay;
  options.threads = FLAGS_threads_per_partition;
  plan.rate = rate_of(table, row, experiment.batch_size, options.epochs);
  plan.published_devices = row.devices;
  return plan;
}

std::vector<AccuracyPlan> make_plans(const AccuracyTable& table,
                                     const std::string& names,
                                     const Settings& settings) {
  if (!settings.balance.empty()) {
    const MetaGuard meta;
    const auto layers = models::resnet101(/*num_classes=*/1)->size();
    check_layers(settings, static_cast<int64_t>(layers));
  }
  std::vector<Experiment> all;
  for (const AccuracyRow& row : table.rows) all.push_back(row.experiment);
  RowOptions options;
  options.names = names;
  std::vector<AccuracyPlan> plans;
  for (const Experiment& chosen :
       choose_rows(all, /*base=*/"", settings, options)) {
    const auto row = std::find_if(table.rows.begin(), table.rows.end(),
                                  [&](const AccuracyRow& each) {
                                    return each.experiment.name == chosen.name;
                                  });
    plans.push_back(row->left_out.empty()
                        ? make_plan(table, *row, chosen, settings)
                        : plan_left_out(*row));
  }
  return plans;
}

}  // namespace

std::string LearningRate::schedule(int64_t steps) const {
  const auto warmup = std::llround(warmup_epochs * static_cast<double>(steps));
  std::string text;
  if (warmup > 0) {
    text = format("warmup:%lld:%.17g,", warmup, warmup_from / base);
  }
  if (milestones.empty()) return text + "constant";
  text += "milestones";
  for (const int64_t epoch : milestones) text += format(":%ld", epoch * steps);
  return text + ":0.1";
}

std::vector<int64_t> usual_milestones(int64_t epochs) {
  std::vector<int64_t> milestones;
  for (const int64_t of_ninety : {30, 60, 80}) {
    milestones.push_back((epochs * of_ninety + 89) / 90);
  }
  return milestones;
}

AccuracyOptions parse_accuracy_options() {
  check_flags();
  AccuracyOptions options;
  options.settings = parse_settings();
  options.rows_of_papers = !FLAGS_experiment.empty();
  options.data_dir = FLAGS_data_dir;
  options.published = FLAGS_published;
  options.plan_only = FLAGS_dry_run;
  options.environment_only = FLAGS_env;
  if (!options.rows_of_papers) {
    options.plans =
        make_plans(own_table(options.settings), "all", options.settings);
    return options;
  }
  const bool accelerators = !options.settings.devices.front().is_cpu();
  options.small = parse_scale(FLAGS_scale, Mode::kMeasure,
                              accelerators && !options.data_dir.empty());
  options.plans = make_plans(accuracy_table(options.small), FLAGS_experiment,
                             options.settings);
  return options;
}

}  // namespace gpipe::benchmarks
