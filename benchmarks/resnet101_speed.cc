// Training speed of ResNet-101 against the number of partitions: Figure 3(b) of
// GPipe (arXiv 1811.06965v4), and torchgpipe's table of the same.

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/nn/functional/loss.h>

#include "benchmarks/harness/speed.h"
#include "models/resnet.h"

namespace {

using gpipe::benchmarks::Experiment;
using gpipe::benchmarks::SpeedBenchmark;
using gpipe::benchmarks::Workload;

constexpr int64_t kClasses = 1000;
constexpr auto kExceptLast = gpipe::Checkpoint::kExceptLast;

// Published: torchgpipe's samples per second (8 Tesla P40) and speed-up, and
// GPipe's speed-up as torchgpipe's authors read it off the figure.
std::vector<Experiment> paper_experiments() {
  return {
      {"baseline", 0, 118, 1, {}, kExceptLast, {95.862, 1.0, 1.0}},
      {"pipeline-1", 1, 220, 2, {370}, kExceptLast, {81.796, 0.853, 0.800}},
      {"pipeline-2",
       2,
       25000,
       1667,
       {135, 235},
       kExceptLast,
       {135.539, 1.414, 1.418}},
      {"pipeline-4",
       4,
       5632,
       256,
       {44, 92, 124, 110},
       kExceptLast,
       {265.958, 2.774, 2.182}},
      {"pipeline-8",
       8,
       5400,
       150,
       {26, 22, 33, 44, 44, 66, 66, 69},
       kExceptLast,
       {411.662, 4.294, 2.891}},
  };
}

// One mini-batch for all, so that the rows differ in nothing but the pipeline.
std::vector<Experiment> small_experiments() {
  auto experiments = paper_experiments();
  for (auto& experiment : experiments) {
    experiment.batch_size = 32;
    if (experiment.partitions > 0) experiment.chunks = 4;
    if (experiment.partitions > 1) experiment.balance.clear();
  }
  return experiments;
}

Workload workload(int64_t image_size) {
  Workload workload;
  const std::string size = std::to_string(image_size);
  workload.text = "random 3x" + size + "x" + size + " images of 1000 classes";
  workload.input = [image_size](int64_t rows) {
    return at::rand({rows, 3, image_size, image_size});
  };
  workload.target = [](int64_t rows) {
    return at::randint(kClasses, {rows}, at::kLong);
  };
  return workload;
}

SpeedBenchmark make_benchmark() {
  SpeedBenchmark benchmark;
  benchmark.program = {
      "resnet101_speed",
      "samples per second of training ResNet-101\n(plain SGD, cross entropy) "
      "without a pipeline (baseline) and with 1, 2, 4 and 8\npartitions, "
      "beside the published figures of torchgpipe and GPipe.",
      {"", "--experiment=baseline,pipeline-2 --epochs=5",
       "--devices=0,1,2,3 --format=markdown",
       "--experiment=pipeline-2 --balance=135,235 --checkpoint=never"}};
  benchmark.title = "ResNet-101, training speed";
  benchmark.published_columns = {"torchgpipe samples/s", "torchgpipe speed-up",
                                 "GPipe speed-up"};
  benchmark.model = [] { return gpipe::models::resnet101(kClasses); };
  benchmark.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::nn::functional::cross_entropy(output, target);
  };

  benchmark.paper = workload(224);
  benchmark.paper.samples_per_epoch = 50000;
  benchmark.paper.epochs = 10;
  benchmark.paper.skip_epochs = 1;
  benchmark.paper.experiments = paper_experiments();

  // Much smaller images would show how LibTorch's CPU kernels take a few rows
  // of 4x4 pixels, and not how a pipeline does.
  benchmark.small = workload(128);
  benchmark.small.samples_per_epoch = 64;
  benchmark.small.epochs = 4;
  benchmark.small.skip_epochs = 1;
  benchmark.small.experiments = small_experiments();
  return benchmark;
}

}  // namespace

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_speed(argc, argv, make_benchmark());
}
