#include "benchmarks/accuracy.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>
#include <stdexcept>

#include "benchmarks/harness/timing.h"
#include "gpipe/base/text.h"
#include "training/data/checksum.h"
#include "training/program/run.h"

namespace gpipe::benchmarks {
namespace {

// The number of images in a mini-batch of "1k".
constexpr int64_t kK = 1024;

// The published speed: torchgpipe's samples per second, and the speed-up
// relative to dataparallel-256.
struct Speed {
  std::optional<double> samples_per_second, speed_up;
};

// The published top-1 error and its deviation, in percent.
struct Error {
  std::optional<double> percent, deviation;
};

AccuracyRow row(const std::string& name, std::optional<int64_t> devices,
                int64_t batch_size, double rate, Error error, Speed speed) {
  AccuracyRow row;
  row.experiment.name = name;
  row.experiment.batch_size = batch_size;
  row.experiment.published = {error.percent, error.deviation,
                              speed.samples_per_second, speed.speed_up};
  row.devices = devices;
  row.rate = rate;
  return row;
}

// Returns a row for the plain model. torchgpipe's code has such a row, its
// table does not.
AccuracyRow naive(int64_t batch_size, double rate) {
  return row("naive-" + std::to_string(batch_size), /*devices=*/std::nullopt,
             batch_size, rate, {}, {});
}

AccuracyRow pipeline(const std::string& name, int64_t batch_size, double rate,
                     int64_t chunks, const std::vector<int64_t>& balance,
                     Error error, Speed speed) {
  const auto partitions = static_cast<int64_t>(balance.size());
  AccuracyRow pipeline = row(name, partitions, batch_size, rate, error, speed);
  pipeline.experiment.partitions = partitions;
  pipeline.experiment.chunks = chunks;
  pipeline.experiment.balance = balance;
  return pipeline;
}

// Returns a row for copies of the model, measured by torchgpipe's authors or by
// Goyal et al. (arXiv 1706.02677).
AccuracyRow data_parallel(const std::string& name, int64_t devices,
                          int64_t batch_size, double rate, Error error,
                          Speed speed) {
  AccuracyRow copies = row(name, devices, batch_size, rate, error, speed);
  copies.left_out = "not run: copies of the model on " +
                    std::to_string(devices) + " devices, not a pipeline";
  return copies;
}

// Returns a row of GPipe's table 4: AmoebaNet-B (18, 512) on images of 480 x
// 480 in 4 partitions, trained for ImageNet and then for another data set. The
// paper gives neither mini-batch nor learning rate.
AccuracyRow amoebanet(const std::string& set, double accuracy_percent) {
  AccuracyRow row;
  row.experiment.name = "amoebanet-b-" + set;
  row.experiment.published = {100 - accuracy_percent, {}, {}, {}};
  if (set == "imagenet") row.devices = 4;
  row.left_out = "not run: AmoebaNet-B; this program trains ResNet-101";
  return row;
}

std::vector<AccuracyRow> rows() {
  const std::vector<int64_t> eight{26, 22, 33, 44, 44, 66, 66, 69};
  return {
      data_parallel("reference-256", 8, 256, 0.1, {22.08, 0.06}, {}),
      data_parallel("reference-8k", 256, 8 * kK, 3.2, {22.36, 0.09}, {}),
      naive(128, 0.1),
      data_parallel("dataparallel-256", 2, 256, 0.1, {22.02, 0.11},
                    {180.344, 1}),
      data_parallel("dataparallel-1k", 8, kK, 0.4, {22.04, 0.24},
                    {606.916, 3.365}),
      data_parallel("dataparallel-4k", 8, 4 * kK, 1.6, {}, {}),
      pipeline("pipeline-256", 256, 0.1, 4, {140, 230}, {21.99, 0.13},
               {117.432, 0.651}),
      pipeline("pipeline-1k", kK, 0.4, 64, eight, {22.24, 0.19},
               {294.739, 1.634}),
      pipeline("pipeline-4k", 4 * kK, 1.6, 64, eight, {22.13, 0.09},
               {378.746, 2.100}),
      amoebanet("imagenet", 84.4),
      amoebanet("cifar-10", 99.0),
      amoebanet("cifar-100", 91.3),
      amoebanet("stanford-cars", 94.6),
      amoebanet("oxford-pets", 95.9),
      amoebanet("food-101", 93.0),
      amoebanet("fgvc-aircraft", 92.7),
      amoebanet("birdsnap", 83.6),
  };
}

}  // namespace

const std::vector<std::string>& accuracy_columns() {
  static const auto* const columns =
      new std::vector<std::string>{"published top-1 error %", "its deviation",
                                   "published samples/s", "published speed-up"};
  return *columns;
}

AccuracyTable accuracy_table(bool small) {
  AccuracyTable table;
  table.rows = rows();
  table.epochs = 90;
  table.image_size = 224;
  table.warmup_epochs = 4;
  table.warmup_rate = 0.1;
  if (!small) return table;

  table.epochs = 6;
  table.image_size = 32;
  table.warmup_epochs = 1;
  table.warmup_rate.reset();
  for (AccuracyRow& row : table.rows) {
    if (!row.left_out.empty()) continue;
    row.experiment.batch_size /= 8;
    row.experiment.chunks = std::min<int64_t>(8, row.experiment.chunks);
    row.experiment.balance.clear();
    row.rate = *row.rate / 100;
  }
  return table;
}

namespace {

// Returns the learning rates of Goyal et al. (arXiv 1706.02677) as factors of
// `rate` (training/learning_rate.h). They grow linearly from the warm-up's
// first rate. After 30, 60 and 80 of 90 epochs, scaled to `epochs` and rounded
// up, they are divided by 10. `steps`: per epoch.
std::string schedule_of(const AccuracyTable& table, double rate, int64_t epochs,
                        int64_t steps) {
  const double first = table.warmup_rate.value_or(rate / 10);
  std::string text = absl::StrFormat(
      "warmup:%lld:%.17g,milestones",
      std::llround(table.warmup_epochs * static_cast<double>(steps)),
      first / rate);
  for (const int64_t of_ninety : {30, 60, 80}) {
    text += absl::StrFormat(":%ld", (epochs * of_ninety + 89) / 90 * steps);
  }
  return text + ":0.1";
}

}  // namespace

train_program::Options row_options(
    const AccuracyTable& table, const AccuracyRow& row,
    train_program::Options options,
    const std::function<bool(const std::string& name)>& given, int64_t steps) {
  const auto set = [&](const char* name, auto& option, const auto& value) {
    if (!given(name)) option = value;
  };
  const Experiment& experiment = row.experiment;
  const bool plain = experiment.partitions == 0;
  set("model", options.model, "resnet101");
  set("size", options.size, table.image_size);
  set("epochs", options.epochs, table.epochs);
  set("batch", options.batch, experiment.batch_size);
  set("partitions", options.partitions,
      std::max<int64_t>(1, experiment.partitions));
  set("chunks", options.chunks, experiment.chunks);
  set("schedule", options.schedule, "fill-drain");
  set("checkpoint", options.checkpoint,
      to_string(plain ? Checkpoint::kNever : experiment.checkpoint));
  if (!experiment.balance.empty()) {
    set("balance", options.balance, absl::StrJoin(experiment.balance, ","));
  }
  set("threads", options.threads, 1);
  set("optimizer", options.optimizer, "sgd");
  set("nesterov", options.nesterov, options.momentum > 0);
  set("weight_decay", options.weight_decay, 1e-4);
  set("decay_norms", options.decay_norms, true);
  set("lr", options.lr, row.rate.value_or(options.lr));
  set("lr_schedule", options.lr_schedule,
      schedule_of(table, options.lr, options.epochs, steps));
  set("train_score", options.train_score, true);
  train_program::check_at_least("chunks", options.chunks, 1);
  if (options.batch % options.chunks != 0) {
    internal::refuse("--batch=", options.batch,
                     " is not a multiple of --chunks=", options.chunks,
                     ": BatchNorm would see micro-batches of unequal sizes");
  }
  return options;
}

namespace {

using train_program::Evaluation;
using train_program::Score;

uint32_t state_checksum(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    tensors[item.key()] = item.value();
  }
  for (const auto& item : module.named_buffers()) {
    tensors[item.key()] = item.value();
  }
  uint32_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    sum = data::checksum_of(tensor, data::checksum_of(name, sum));
  }
  return sum;
}

// Adds the mean loss and the top-1 error in percent.
void add_score(const Score& score, Row& row) {
  row.cells.emplace_back(score.loss / score.items, 6);
  row.cells.emplace_back(100 * (score.items - score.value) / score.items, 2);
}

void add_settings(const AccuracyOutcome& outcome, Row& row) {
  const train_program::Options& options = outcome.options;
  const std::string balance = outcome.balance.empty()
                                  ? options.balance
                                  : absl::StrJoin(outcome.balance, ",");
  row.cells = {options.batch,      options.chunks, balance,
               options.checkpoint, options.epochs, Cell(options.lr, 5)};
}

void add_result(const AccuracyOutcome& outcome, Row& row) {
  std::vector<double> speeds;
  for (const Evaluation& epoch : outcome.epochs) {
    if (epoch.untimed_steps > 0) continue;
    row.durations.push_back({epoch.seconds, epoch.cpu_seconds});
    speeds.push_back(epoch.train.items / epoch.seconds);
  }
  if (speeds.size() > 1) {
    speeds.erase(speeds.begin());
    row.durations.erase(row.durations.begin());
  }
  add_score(outcome.epochs.back().train, row);
  add_score(outcome.epochs.back().test, row);
  row.cells.push_back(speeds.empty() ? Cell() : Cell(median(speeds), 2));
  row.cells.emplace_back(absl::StrFormat("%08x", outcome.checksum));
}

}  // namespace

void train_row(train_program::Task& task, AccuracyOutcome& outcome) {
  const train_program::Options& options = outcome.options;
  const int code = train_program::run(
      options, task,
      [&](const std::string& line) {
        LOG(INFO) << outcome.row.experiment.name << " | " << line;
      },
      [&](const Evaluation& evaluation, PipelineModule& pipeline) {
        outcome.epochs.push_back(evaluation);
        outcome.balance = pipeline.balance();
        outcome.checksum = state_checksum(pipeline);
      });
  if (code > train_program::kSignal) std::raise(code - train_program::kSignal);
  if (code != train_program::kDone) {
    throw std::runtime_error("the loss or a gradient is not finite in epoch " +
                             std::to_string(outcome.epochs.size() + 1) +
                             " (see the log); try a smaller --lr");
  }
  if (outcome.epochs.empty()) {
    throw std::runtime_error(
        "no epoch was evaluated: all steps of the run in --run_dir were done, "
        "or --eval_every is negative");
  }
}

Table accuracy_rows_table(const std::vector<AccuracyOutcome>& outcomes) {
  Table table;
  table.title = "ResNet-101, accuracy";
  table.columns = {"batch",         "chunks",
                   "balance",       "checkpoint",
                   "epochs",        "learning rate",
                   "training loss", "training error %",
                   "test loss",     "test top-1 error %",
                   "samples/s",     "checksum"};
  const std::size_t own = table.columns.size();
  for (const auto& name : accuracy_columns()) table.columns.push_back(name);
  table.columns.emplace_back("published on devices");
  for (const AccuracyOutcome& outcome : outcomes) {
    Row& row = table.rows.emplace_back();
    row.name = outcome.row.experiment.name;
    row.error = outcome.error;
    if (outcome.row.left_out.empty()) add_settings(outcome, row);
    if (!outcome.epochs.empty()) add_result(outcome, row);
    row.cells.resize(own);
    const auto& published = outcome.row.experiment.published;
    row.cells.emplace_back(published.at(0), 2);
    row.cells.emplace_back(published.at(1), 2);
    row.cells.emplace_back(published.at(2), 3);
    row.cells.emplace_back(published.at(3), 3);
    if (outcome.row.devices) row.cells.emplace_back(*outcome.row.devices);
  }
  table.notes = {
      "Errors are those of the last epoch. Samples/s: the median over the "
      "epochs, without the first one if there are several.",
      "Published: torchgpipe's figures after 90 epochs on ImageNet, means of "
      "several runs on Tesla P40, with speed-ups relative to dataparallel-256; "
      "its dataparallel-4k ran out of memory. reference-*: Goyal et al., from "
      "torchgpipe's table. amoebanet-b-*: GPipe's table 4, AmoebaNet-B (18, "
      "512) on images of 480x480."};
  return table;
}

}  // namespace gpipe::benchmarks
