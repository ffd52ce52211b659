#include "benchmarks/resnet101_accuracy/preset.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>

#include "gpipe/base/text.h"

namespace gpipe::benchmarks {
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
  if (options.batch % options.chunks != 0) {
    internal::refuse("--batch=", options.batch,
                     " is not a multiple of --chunks=", options.chunks,
                     ": BatchNorm would see micro-batches of unequal sizes");
  }
  return options;
}

}  // namespace gpipe::benchmarks
