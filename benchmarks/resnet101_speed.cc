// Training speed of ResNet-101 against the number of partitions: Figure 3(b) of
// GPipe (arXiv 1811.06965v4), and torchgpipe's table of the same.

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/run.h"
#include "benchmarks/workloads.h"
#include "models/resnet.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kClasses = 1000;
// Published: torchgpipe's samples per second and speed-up, and GPipe's
// speed-up.
Experiment row(const std::string& name, int64_t partitions, int64_t batch_size,
               int64_t chunks, const std::vector<int64_t>& balance,
               double torchgpipe, double torchgpipe_speed_up,
               double gpipe_speed_up) {
  return {name,
          partitions,
          batch_size,
          chunks,
          balance,
          Checkpoint::kExceptLast,
          {torchgpipe, torchgpipe_speed_up, gpipe_speed_up},
          {},
          ""};
}

std::vector<Experiment> experiments() {
  const std::vector<int64_t> eight{26, 22, 33, 44, 44, 66, 66, 69};
  return {
      row("baseline", 0, 118, 1, {}, 95.862, 1, 1),
      row("pipeline-1", 1, 220, 2, {370}, 81.796, 0.853, 0.800),
      row("pipeline-2", 2, 25000, 1667, {135, 235}, 135.539, 1.414, 1.418),
      row("pipeline-4", 4, 5632, 256, {44, 92, 124, 110}, 265.958, 2.774,
          2.182),
      row("pipeline-8", 8, 5400, 150, eight, 411.662, 4.294, 2.891),
  };
}

Benchmark make_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "resnet101_speed",
      "samples per second of training ResNet-101\n(plain SGD, cross entropy) "
      "without a pipeline (baseline) and with 1, 2, 4 and 8\npartitions, "
      "beside the published figures of torchgpipe and GPipe.",
      {"", "--experiment=baseline,pipeline-2 --epochs=5 --control",
       "--devices=0,1,2,3 --format=markdown",
       "--mode=simulate --plot=/tmp/speed-ups.svg",
       "--experiment=pipeline-2 --balance=135,235 --checkpoint=never"}};
  benchmark.title = "ResNet-101, training speed";
  benchmark.published = {{"torchgpipe samples/s", Figure::kSpeed},
                         {"torchgpipe speed-up", Figure::kSpeedUp},
                         {"GPipe speed-up", Figure::kSpeedUp}};
  benchmark.notes = {
      "torchgpipe's figures are of 8 Tesla P40, GPipe's speed-ups as "
      "torchgpipe's authors read them off figure 3(b)."};
  benchmark.model = [](const Experiment&) {
    return models::resnet101(kClasses);
  };
  benchmark.loss = cross_entropy;

  benchmark.paper = images_of_classes(224, kClasses);
  benchmark.paper.samples_per_epoch = 50000;
  benchmark.paper.epochs = 10;
  benchmark.paper.skip_epochs = 1;
  benchmark.paper.experiments = experiments();

  // Much smaller images would show how LibTorch's CPU kernels take a few rows
  // of 4x4 pixels, and not how a pipeline does.
  benchmark.small = images_of_classes(128, kClasses);
  benchmark.small.samples_per_epoch = 64;
  benchmark.small.epochs = 4;
  benchmark.small.skip_epochs = 1;
  benchmark.small.experiments = reduced(experiments(), 32, 4);
  return benchmark;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(argc, argv,
                                          gpipe::benchmarks::make_benchmark());
}
