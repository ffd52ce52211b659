// A table of a paper as data: its rows, model, loss and published figures.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/mode.h"
#include "benchmarks/harness/experiment/optimizer.h"
#include "benchmarks/harness/experiment/program.h"

namespace gpipe::benchmarks {

// The quantity in a column of figures, such as Experiment::published.
enum class Figure {
  kSpeed,            // samples per second
  kSpeedUp,          // relative to the base experiment
  kParameters,       // number of parameters
  kLastingBytes,     // sum of DeviceMemory::lasting() over all devices
  kActivationBytes,  // sum of DeviceMemory::activations() over all devices
  kTotalBytes,       // sum of DeviceMemory::peak over all devices
};

// A column of published figures.
struct PublishedColumn {
  std::string name;  // "torchgpipe samples/s"
  Figure figure = Figure::kSpeed;
};

// The experiments of a table at one size: as published, or reduced.
struct Workload {
  std::string text;  // describes the data: "3x224x224 images"
  int64_t samples_per_epoch = 0;
  int64_t epochs = 0;
  int64_t skip_epochs = 0;  // number of warm-up epochs that do not count
  std::vector<Experiment> experiments;
  std::vector<std::string> notes;  // sentences that hold at this size only
  // Make a mini-batch of `rows` samples and its target. They name no device, so
  // that a dry run can make both on the meta device.
  std::function<at::Tensor(int64_t rows)> input;
  std::function<at::Tensor(int64_t rows)> target;
};

// A table: how to run its experiments, and how to present the results.
struct Benchmark {
  Program program;
  std::string title;
  TableKind table_kind = TableKind::kSpeed;  // decides the default mode
  // The column name for Experiment::size, "(L, D)"; "" if all sizes are equal.
  std::string size_column;
  std::vector<PublishedColumn> published;
  std::string base = "baseline";  // the experiment with a speed-up of 1
  std::function<torch::nn::Sequential(const Experiment&)> model;
  std::function<at::Tensor(at::Tensor output, at::Tensor target)> loss;
  Optimizer optimizer = Optimizer::kSgd;
  double learning_rate = 0.1;
  Workload paper;                  // the published sizes
  Workload small;                  // sizes that take minutes on a CPU
  std::vector<std::string> notes;  // sentences about the published figures
};

}  // namespace gpipe::benchmarks
