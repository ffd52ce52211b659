#include "benchmarks/resnet101_accuracy/train.h"

#include <ATen/ops/rand.h>
#include <glog/logging.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "benchmarks/harness/progress.h"
#include "benchmarks/harness/throughput.h"
#include "gpipe/gpipe.h"
#include "gpipe/text/lists.h"
#include "gpipe/text/refuse.h"
#include "train_program/prefetch.h"

namespace gpipe::benchmarks {
namespace {

using train_program::Sample;
using train_program::Task;

std::vector<int64_t> measured_balance(const AccuracyPlan& plan,
                                      const torch::nn::Sequential& model,
                                      Balancer* balancer) {
  const Experiment& experiment = plan.experiment;
  const int64_t side = plan.task.size;
  const at::Tensor sample =
      at::rand({experiment.batch_size / experiment.chunks, 3, side, side},
               plan.devices.front());
  const int64_t threads = plan.threads_per_partition > 0
                              ? plan.threads_per_partition
                              : threads_per_partition(experiment.partitions);
  return balancer->balance(experiment.partitions, model, sample, threads);
}

GPipe make_pipeline(const AccuracyPlan& plan, const Task& task,
                    Balancer* balancer) {
  torch::manual_seed(plan.task.seed);
  torch::nn::Sequential model = task.model();
  const Experiment& experiment = plan.experiment;
  const bool plain = experiment.partitions == 0;
  std::vector<int64_t> balance = experiment.balance;
  if (plain) balance = {static_cast<int64_t>(model->size())};
  if (balance.empty()) balance = measured_balance(plan, model, balancer);
  const Checkpoint checkpoint =
      plain ? Checkpoint::kNever : experiment.checkpoint;
  LOG(INFO) << "batch size: " << experiment.batch_size
            << ", chunks: " << experiment.chunks << ", balance: ["
            << join(balance) << "], checkpoint: " << to_string(checkpoint)
            << ", learning rate: " << plan.rate.base << " after "
            << plan.rate.warmup_epochs << " epochs of warm-up, a tenth after ["
            << join(plan.rate.milestones) << "]";
  return GPipe(model, GPipeOptions(balance)
                          .devices(plan.devices)
                          .chunks(experiment.chunks)
                          .checkpoint(checkpoint)
                          .threads_per_partition(plan.threads_per_partition));
}

class Trainer {
 public:
  Trainer(const AccuracyPlan& plan, Task* task, Balancer* balancer)
      : plan_(plan),
        task_(*task),
        pipeline_(make_pipeline(plan, *task, balancer)),
        optimizer_(pipeline_->parameters(),
                   torch::optim::SGDOptions(plan.rate.base)
                       .momentum(plan.momentum)
                       .weight_decay(plan.weight_decay)
                       .nesterov(plan.momentum > 0)),
        progress_(plan.experiment.name, plan.epochs) {}

  // Trains for one epoch, then tests. `epoch`: counted from 0.
  EpochResult run_epoch(int64_t epoch) {
    EpochResult result;
    result.rate = plan_.rate.at(static_cast<double>(epoch));
    const Stopwatch watch(plan_.devices);
    result.train = train_epoch(epoch);
    result.duration = watch.elapsed();
    result.test = test_epoch();
    progress_.say("epoch " + std::to_string(epoch + 1) + "/" +
                  std::to_string(plan_.epochs) + " | loss " +
                  Cell(mean_loss(result.train), 6).text() + " | test error " +
                  Cell(error_percent(result.test), 2).text() + "% | " +
                  Cell(result.samples_per_second(), 2).text() + " samples/s");
    return result;
  }

  uint64_t state_checksum() const {
    std::map<std::string, at::Tensor> tensors;
    for (const auto& item : pipeline_->named_parameters()) {
      tensors[item.key()] = item.value();
    }
    for (const auto& item : pipeline_->named_buffers()) {
      tensors[item.key()] = item.value();
    }
    return checksum(tensors);
  }

  const std::vector<int64_t>& balance() const { return pipeline_->balance(); }

 private:
  Score train_epoch(int64_t epoch) {
    const int64_t batch = plan_.task.batch;
    int64_t steps = task_.train_batches();
    if (plan_.limit > 0) steps = std::min(steps, plan_.limit / batch);
    if (steps == 0) {
      internal::refuse("--batch_size=", batch,
                       " is more than --limit=", plan_.limit,
                       ": use a smaller one, or a larger limit");
    }
    const int64_t first = epoch * task_.train_batches();
    train_program::Prefetch<Sample> batches(
        [&](int64_t index) {
          return task_.train_batch(index, {0, batch});
        },
        first, first + steps);
    pipeline_->train();
    Score score;
    const Stopwatch watch({});
    for (int64_t step = 0; step < steps; ++step) {
      const double done =
          static_cast<double>(step) / static_cast<double>(steps);
      set_learning_rate(plan_.rate.at(static_cast<double>(epoch) + done));
      train_step(batches.next(), epoch, step, &score);
      progress_.update(epoch + 1, done + 1 / static_cast<double>(steps),
                       score.items / watch.elapsed().wall_seconds);
    }
    return score;
  }

  void train_step(const Sample& sample, int64_t epoch, int64_t step,
                  Score* score) {
    optimizer_.zero_grad();
    const at::Tensor output = forward(sample);
    const WeightedLoss loss = task_.loss(output, sample.target);
    (loss.sum / loss.weight).backward();
    optimizer_.step();
    *score += task_.score(output.detach().cpu(), sample.target);
    if (!std::isfinite(score->loss)) {
      throw std::runtime_error("the loss is not a finite number in epoch " +
                               std::to_string(epoch + 1) + ", step " +
                               std::to_string(step + 1) +
                               "; try a smaller --lr or --warmup_epochs");
    }
  }

  Score test_epoch() {
    train_program::Prefetch<Sample> batches(
        [&](int64_t index) { return task_.test_batch(index); }, 0,
        task_.test_batches());
    pipeline_->eval();
    const torch::NoGradGuard no_grad;
    Score score;
    for (int64_t k = 0; k < task_.test_batches(); ++k) {
      const Sample sample = batches.next();
      score += task_.score(forward(sample).cpu(), sample.target);
    }
    return score;
  }

  at::Tensor forward(const Sample& sample) {
    return pipeline_->forward(sample.input.to(plan_.devices.front()));
  }

  void set_learning_rate(double rate) {
    for (auto& group : optimizer_.param_groups()) group.options().set_lr(rate);
  }

  const AccuracyPlan& plan_;
  Task& task_;
  GPipe pipeline_;
  torch::optim::SGD optimizer_;
  Progress progress_;
};

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

AccuracyResult train_accuracy(const AccuracyPlan& plan, Task* task,
                              Balancer* balancer) {
  Trainer trainer(plan, task, balancer);
  AccuracyResult result;
  result.data = task->data();
  for (int64_t epoch = 0; epoch < plan.epochs; ++epoch) {
    result.epochs.push_back(trainer.run_epoch(epoch));
  }
  result.balance = trainer.balance();
  result.checksum = trainer.state_checksum();
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
