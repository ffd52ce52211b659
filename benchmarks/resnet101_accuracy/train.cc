#include "benchmarks/resnet101_accuracy/train.h"

#include <glog/logging.h>

#include <algorithm>
#include <csignal>
#include <stdexcept>

#include "gpipe/text/lists.h"
#include "train_program/exit_code.h"
#include "train_program/run.h"
#include "training/learning_rate.h"

namespace gpipe::benchmarks {
namespace {

using train_program::Evaluation;
using train_program::Options;

// Returns the options of the train program. `steps`: per epoch.
Options options_of(const AccuracyPlan& plan, int64_t steps) {
  const Experiment& experiment = plan.experiment;
  const bool plain = experiment.partitions == 0;
  Options options = plan.options;
  options.optimizer = "sgd";
  options.nesterov = options.momentum > 0;
  options.decay_norms = true;
  options.lr = plan.rate.base;
  options.lr_schedule = plan.rate.schedule(steps);
  options.train_score = true;
  options.partitions = std::max<int64_t>(1, experiment.partitions);
  options.chunks = experiment.chunks;
  options.schedule = "fill-drain";
  options.checkpoint =
      to_string(plain ? Checkpoint::kNever : experiment.checkpoint);
  if (!experiment.balance.empty()) options.balance = join(experiment.balance);
  return options;
}

uint64_t state_checksum(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    tensors[item.key()] = item.value();
  }
  for (const auto& item : module.named_buffers()) {
    tensors[item.key()] = item.value();
  }
  return checksum(tensors);
}

// The 64-bit FNV-1a hash: http://www.isthe.com/chongo/tech/comp/fnv
class Fnv1a {
 public:
  void add(const void* data, size_t bytes) {
    const auto* in = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) {
      hash_ = (hash_ ^ in[i]) * 0x100000001B3;
    }
  }
  void add(int64_t value) { add(&value, sizeof(value)); }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace

AccuracyResult train_accuracy(const AccuracyPlan& plan,
                              train_program::Task& task) {
  const int64_t steps = task.train_batches();
  const Options options = options_of(plan, steps);
  const LearningRateSchedule schedule(options.lr_schedule);
  AccuracyResult result;
  result.data = task.data();
  const int code = train_program::run(
      options, task,
      [&](const std::string& line) {
        LOG(INFO) << plan.experiment.name << " | " << line;
      },
      [&](const Evaluation& evaluation, PipelineModule& pipeline) {
        const double rate =
            options.lr * schedule.factor(evaluation.step - steps);
        result.epochs.push_back({rate,
                                 evaluation.train,
                                 evaluation.test,
                                 {evaluation.seconds, evaluation.cpu_seconds}});
        result.balance = pipeline.balance();
        if (evaluation.step < options.epochs * steps) return;
        result.checksum = state_checksum(pipeline);
      });
  if (code > train_program::kSignal) std::raise(code - train_program::kSignal);
  if (code != train_program::kDone) {
    throw std::runtime_error(
        "the loss or a gradient is not finite in epoch " +
        std::to_string(result.epochs.size() + 1) +
        " (see the log); try a smaller --lr or a longer --warmup_epochs");
  }
  return result;
}

uint64_t checksum(const std::map<std::string, at::Tensor>& tensors) {
  Fnv1a hash;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
    hash.add(name.data(), name.size());
    hash.add(static_cast<int64_t>(values.scalar_type()));
    hash.add(values.dim());
    for (const int64_t size : values.sizes()) hash.add(size);
    hash.add(values.const_data_ptr(), values.nbytes());
  }
  return hash.hash();
}

}  // namespace gpipe::benchmarks
