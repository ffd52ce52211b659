// A table of a paper as data, and the main() that fills it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/optimizer.h"
#include "benchmarks/harness/program.h"

namespace gpipe::benchmarks {

// What a published figure (Experiment::published) says.
enum class Figure {
  kSpeed,            // samples per second
  kSpeedUp,          // by the benchmark's base
  kParameters,       // how many
  kLastingBytes,     // DeviceMemory::lasting(), of all devices together
  kActivationBytes,  // DeviceMemory::activations(), of all devices together
  kTotalBytes,       // both
};

struct PublishedColumn {
  std::string name;  // "torchgpipe samples/s"
  Figure figure = Figure::kSpeed;
};

// The experiments at one size.
struct Workload {
  std::string text;  // of the data: "3x224x224 images"
  int64_t samples_per_epoch = 0;
  int64_t epochs = 0;
  int64_t skip_epochs = 0;  // they warm up
  std::vector<Experiment> experiments;
  std::vector<std::string> notes;  // sentences that hold at this size only
  // A mini-batch of `rows` samples and its target, made on no device in
  // particular, so that there is a way to make it without memory.
  std::function<at::Tensor(int64_t rows)> input;
  std::function<at::Tensor(int64_t rows)> target;
};

struct Benchmark {
  Program program;
  std::string title;
  Subject subject = Subject::kSpeed;  // says how it is filled by default
  std::string size_column;  // of Experiment::size, "(L, D)"; "": all are equal
  std::vector<PublishedColumn> published;
  std::string base = "baseline";  // the experiment with a speed-up of 1
  std::function<torch::nn::Sequential(const Experiment&)> model;
  std::function<at::Tensor(at::Tensor output, at::Tensor target)> loss;
  Optimizer optimizer = Optimizer::kSgd;
  double learning_rate = 0.1;
  Workload paper;                  // as published
  Workload small;                  // minutes on a CPU
  std::vector<std::string> notes;  // sentences on the published figures
};

}  // namespace gpipe::benchmarks
