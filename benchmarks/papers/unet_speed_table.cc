#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/workloads.h"
#include "benchmarks/papers/tables.h"
#include "benchmarks/papers/unet_model.h"

namespace gpipe::benchmarks {
namespace {

// Returns a row with torchgpipe's samples per second and speed-up.
Experiment row(int64_t partitions, int64_t batch_size, int64_t chunks,
               const std::vector<int64_t>& balance, double torchgpipe,
               double speed_up) {
  Experiment row = pipeline_row(partitions, batch_size, chunks, balance);
  row.published = {torchgpipe, speed_up};
  row.size = {5, 64};
  return row;
}

std::vector<Experiment> experiments() {
  const std::vector<int64_t> eight{16, 27, 31, 44, 22, 57, 27, 17};
  return {
      row(0, 40, 1, {}, 28.500, 1),
      row(1, 80, 2, {241}, 24.456, 0.858),
      row(2, 512, 32, {104, 137}, 35.502, 1.246),
      row(4, 512, 16, {30, 66, 84, 61}, 67.042, 2.352),
      row(8, 640, 40, eight, 88.497, 3.105),
  };
}

std::vector<Experiment> small_experiments() {
  auto experiments = reduced(gpipe::benchmarks::experiments(), 32, 4);
  for (auto& experiment : experiments) experiment.size = {2, 16};
  return experiments;
}

}  // namespace

Benchmark unet_speed_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "unet_speed",
      "samples per second of training U-Net (5, 64)\n(plain SGD, binary cross "
      "entropy) without a pipeline (baseline) and with 1, 2, 4\nand 8 "
      "partitions, beside the published figures of torchgpipe.",
      {"", "--experiment=baseline,pipeline-2 --epochs=5",
       "--mode=simulate --timeline=/tmp/steps.svg",
       "--devices=0,1,2,3 --same_batch"}};
  benchmark.title = "U-Net, training speed";
  benchmark.size_column = kUnetSize;
  benchmark.published = {{"torchgpipe samples/s", Figure::kSpeed},
                         {"torchgpipe speed-up", Figure::kSpeedUp}};
  benchmark.notes = {"torchgpipe's figures are of 8 Tesla P40."};
  benchmark.model = unet_of;
  benchmark.loss = mask_loss;

  benchmark.paper = with_rows(images_with_masks(192, Mask::kOnes),
                              experiments(), {10000, 10, 1});

  benchmark.small = with_rows(images_with_masks(96, Mask::kOnes),
                              small_experiments(), {64, 5, 1});
  return benchmark;
}

}  // namespace gpipe::benchmarks
