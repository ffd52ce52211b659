// Runs that take a second.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/options.h"
#include "trainer/task.h"
#include "training/run_state.h"

namespace gpipe::trainer {

// A small model of the name, on drawn data; two partitions on the CPU with a
// thread each, without evaluation, without a folder.
Options small_options(const std::string& model);

// The same task, but that something else happens, too.
class TaskWith : public Task {
 public:
  // `at_loss(output)` gives what the loss is computed of.
  TaskWith(Task& task,
           std::function<at::Tensor(const at::Tensor& output)> at_loss,
           std::function<void(int64_t index)> at_batch = nullptr)
      : task_(task),
        at_loss_(std::move(at_loss)),
        at_batch_(std::move(at_batch)) {}

  torch::nn::Sequential model() const override {
    return change_model ? change_model(task_.model()) : task_.model();
  }
  std::string data() const override { return task_.data(); }
  uint32_t checksum() const override { return task_.checksum(); }
  std::string rows_name() const override { return task_.rows_name(); }
  int64_t train_batches() const override { return task_.train_batches(); }
  int64_t test_batches() const override { return task_.test_batches(); }
  Sample train_batch(int64_t index, Rows rows) override {
    if (at_batch_) at_batch_(index);
    return task_.train_batch(index, rows);
  }
  Sample test_batch(int64_t index) override { return task_.test_batch(index); }
  at::Tensor loss(const at::Tensor& output,
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

  std::function<torch::nn::Sequential(torch::nn::Sequential)> change_model;

 private:
  Task& task_;
  const std::function<at::Tensor(const at::Tensor&)> at_loss_;
  const std::function<void(int64_t)> at_batch_;
};

// A run and what it has printed.
struct Ran {
  int code = 0;
  std::vector<std::string> lines;

  // The first line with this in it; "" if there is none.
  std::string line_with(const std::string& part) const;
};
Ran run_here(const Options& options);
Ran run_here(const Options& options, Task& task);

// The newest saved step.
RunState state_in(const std::string& folder);

// Of the whole test, by `model`, which is given the weights of the newest saved
// step: without a pipeline, and so without micro-batches.
Score plain_score(const std::string& folder, Task& task,
                  torch::nn::Sequential model);

// Of a step, in its metrics.csv; "" if there is nothing.
std::string logged(const std::string& folder, int64_t step,
                   const std::string& column);

}  // namespace gpipe::trainer
