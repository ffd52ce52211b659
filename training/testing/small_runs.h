// Training runs that take about a second, for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "training/program/model_source.h"
#include "training/program/options.h"
#include "training/program/task.h"
#include "training/run_state.h"

namespace gpipe::train_program {

// Returns options for a small model on generated data: two partitions on the
// CPU with one thread each, no evaluation and no folder.
Options small_options(const std::string& model);

// Does the same for a run whose pipeline --plan chooses.
Options planned_options(const std::string& model, const std::string& plan);

// A task that calls functions of a test before it forwards to another task.
class TaskWith : public Task {
 public:
  // `at_loss`: maps the output to the tensor from which the loss is computed.
  // `at_batch`: called with the index before a mini-batch is loaded.
  TaskWith(Task& task,
           std::function<at::Tensor(const at::Tensor& output)> at_loss,
           std::function<void(int64_t index)> at_batch = nullptr)
      : task_(task),
        at_loss_(std::move(at_loss)),
        at_batch_(std::move(at_batch)) {}

  ModelSource& source() const override { return task_.source(); }
  torch::nn::Sequential model() const override {
    return change_model ? change_model(task_.model()) : task_.model();
  }
  std::string data() const override { return task_.data(); }
  uint32_t checksum() const override { return task_.checksum(); }
  std::string vocabulary() const override { return task_.vocabulary(); }
  std::string rows_name() const override { return task_.rows_name(); }
  int64_t train_batches() const override { return task_.train_batches(); }
  int64_t test_batches() const override { return task_.test_batches(); }
  Sample train_batch(int64_t index, Rows rows) override {
    if (at_batch_) at_batch_(index);
    return task_.train_batch(index, rows);
  }
  Sample test_batch(int64_t index) override { return task_.test_batch(index); }
  bool has_parts() const override { return task_.has_parts(); }
  std::vector<Sample> train_parts(Rows rows, int64_t count) override {
    return task_.train_parts(rows, count);
  }
  WeightedLoss loss(const at::Tensor& output,
                    const at::Tensor& target) const override {
    return task_.loss(at_loss_ ? at_loss_(output) : output, target);
  }
  Score score(const at::Tensor& output,
              const at::Tensor& target) const override {
    return task_.score(output, target);
  }
  std::string metric_name() const override { return task_.metric_name(); }
  double metric(const Score& score) const override {
    return task_.metric(score);
  }

  // If set, replaces the model.
  std::function<torch::nn::Sequential(torch::nn::Sequential)> change_model;

 private:
  Task& task_;
  const std::function<at::Tensor(const at::Tensor&)> at_loss_;
  const std::function<void(int64_t)> at_batch_;
};

// The exit code and the printed lines of a run.
struct Ran {
  int code = 0;
  std::vector<std::string> lines;

  // Returns the first line that contains `part`, or "".
  std::string line_with(const std::string& part) const;
};
Ran run_here(const Options& options);
Ran run_here(const Options& options, Task& task);

// Returns the newest saved step.
RunState state_in(const std::string& folder);

// Returns the score of `model` on the whole test set. Loads the weights of the
// newest saved step into it. Runs without a pipeline and without micro-batches.
Score plain_score(const std::string& folder, Task& task,
                  torch::nn::Sequential model);

// Returns a value of a step in metrics.csv, or "" if there is none.
std::string logged(const std::string& folder, int64_t step,
                   const std::string& column);

}  // namespace gpipe::train_program
