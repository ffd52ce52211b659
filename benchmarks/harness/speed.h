// A table of training speeds: experiments of a paper, one after the other.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/program.h"

namespace gpipe::benchmarks {

// The experiments at one size.
struct Workload {
  std::string text;  // of the data: "3x224x224 images"
  int64_t samples_per_epoch = 0;
  int64_t epochs = 0;
  int64_t skip_epochs = 0;
  std::vector<Experiment> experiments;
  // A mini-batch of `rows` samples, on the CPU, and its target.
  std::function<at::Tensor(int64_t rows)> input;
  std::function<at::Tensor(int64_t rows)> target;
};

struct SpeedBenchmark {
  Program program;
  std::string title;
  Workload paper;  // as published
  Workload small;  // minutes on a CPU
  // Names of the columns for Experiment::published.
  std::vector<std::string> published_columns;
  std::function<torch::nn::Sequential()> model;
  std::function<at::Tensor(at::Tensor output, at::Tensor target)> loss;
  double learning_rate = 0.1;  // plain SGD
};

// The whole of main(). Each experiment starts from a new model of the same
// seed and trains on one mini-batch, made once; its row has the mean speed of
// the epochs that were not skipped, their standard deviation, and the ratio to
// the experiment "baseline" of this run. An experiment that throws is a row
// that says so (exit code 2 at the end), and one for which there are not enough
// devices a row that says that.
int run_speed(int argc, char** argv, const SpeedBenchmark& benchmark);

}  // namespace gpipe::benchmarks
