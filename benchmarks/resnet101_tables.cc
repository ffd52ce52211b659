#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/tables.h"
#include "models/resnet.h"

namespace gpipe::benchmarks {
namespace {

// Returns the rows with their published figures: torchgpipe's samples per
// second and speed-up, and GPipe's speed-up.
std::vector<Experiment> experiments() {
  const std::vector<int64_t> eight{26, 22, 33, 44, 44, 66, 66, 69};
  return {
      pipeline_row(0, 118, 1, {}, {95.862, 1, 1}),
      pipeline_row(1, 220, 2, {370}, {81.796, 0.853, 0.800}),
      pipeline_row(2, 25000, 1667, {135, 235}, {135.539, 1.414, 1.418}),
      pipeline_row(4, 5632, 256, {44, 92, 124, 110}, {265.958, 2.774, 2.182}),
      pipeline_row(8, 5400, 150, eight, {411.662, 4.294, 2.891}),
  };
}

}  // namespace

Benchmark resnet101_speed_benchmark() {
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
      "torchgpipe's figures are of 8 Tesla P40. GPipe's speed-ups are those "
      "that torchgpipe's authors read off figure 3(b)."};
  benchmark.model = [](const Experiment&) {
    return models::resnet101(kImageNetClasses);
  };
  benchmark.loss = cross_entropy;

  benchmark.paper = with_rows(images_of_classes(224, kImageNetClasses),
                              experiments(), {50000, 10, 1});

  // With much smaller images the table would show the speed of LibTorch's CPU
  // kernels on a few rows of 4x4 pixels, not that of a pipeline.
  benchmark.small = with_rows(images_of_classes(128, kImageNetClasses),
                              reduced(experiments(), 32, 4), {64, 4, 1});
  return benchmark;
}

}  // namespace gpipe::benchmarks
