// The tables about U-Net, but not the timeline.
#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/tables.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kBatch = 32;

// Returns a row with torchgpipe's figures: parameters in millions, and the
// memory of all devices in GiB.
Experiment memory_row(int64_t partitions, const std::vector<int64_t>& size,
                      int64_t chunks, const std::vector<int64_t>& balance,
                      double millions, double gib) {
  Experiment row = pipeline_row(partitions, kBatch, chunks, balance,
                                {millions * 1e6, gib * kGiB}, size);
  // If there are more chunks than rows, the last chunk does not exist, so
  // torchgpipe recomputes all micro-batches.
  if (chunks > kBatch) row.checkpoint = Checkpoint::kAlways;
  return row;
}

std::vector<Experiment> memory_experiments() {
  const std::vector<int64_t> eight{800, 140, 62, 36, 36, 36, 36, 987};
  return {
      memory_row(0, {6, 72}, 1, {}, 362.2, 20.3),
      memory_row(1, {11, 128}, 32, {505}, 2210, 20.5),
      memory_row(2, {24, 128}, 32, {526, 551}, 4990, 43.4),
      memory_row(4, {24, 160}, 32, {472, 54, 36, 515}, 7800, 79.1),
      memory_row(8, {48, 160}, 128, eight, 15820, 154.1),
  };
}

// Returns the rows at reduced size, for a few CPU cores.
std::vector<Experiment> small_memory_experiments() {
  return reduced(memory_experiments(), 8, 8,
                 {{1, 8}, {2, 8}, {2, 16}, {3, 16}, {3, 24}});
}

}  // namespace

Benchmark unet_memory_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "unet_memory",
      "memory of training U-Nets (B, C) that grow with the\nnumber of devices, "
      "up to 15.8 billion parameters on 8, beside the published figures\nof "
      "torchgpipe. If there are fewer accelerators it is a dry run, which "
      "allocates no memory.",
      {"", "--experiment=pipeline-8 --format=csv",
       "--checkpoint=never --experiment=baseline,pipeline-1",
       "--mode=measure --devices=cpu", "--plot=/tmp/memory.svg"}};
  benchmark.title = "U-Net, memory";
  benchmark.table_kind = TableKind::kMemory;
  benchmark.size_column = kUnetSize;
  benchmark.published = {{"torchgpipe parameters", Figure::kParameters},
                         {"torchgpipe total memory", Figure::kTotalBytes}};
  benchmark.notes = {
      "torchgpipe's memory is the memory that PyTorch's allocator had reserved "
      "on Tesla P40. That is more than its tensors used."};
  benchmark.model = unet_of;
  benchmark.loss = mask_loss;

  benchmark.paper = with_rows(images_with_masks(192, Mask::kRandom),
                              memory_experiments(), {.epochs = 2});

  benchmark.small = with_rows(images_with_masks(64, Mask::kRandom),
                              small_memory_experiments(), {.epochs = 2});
  return benchmark;
}

namespace {

// Returns the rows with torchgpipe's samples per second and speed-ups.
std::vector<Experiment> speed_experiments() {
  const std::vector<int64_t> eight{16, 27, 31, 44, 22, 57, 27, 17};
  const std::vector<int64_t> size{5, 64};
  return {
      pipeline_row(0, 40, 1, {}, {28.500, 1}, size),
      pipeline_row(1, 80, 2, {241}, {24.456, 0.858}, size),
      pipeline_row(2, 512, 32, {104, 137}, {35.502, 1.246}, size),
      pipeline_row(4, 512, 16, {30, 66, 84, 61}, {67.042, 2.352}, size),
      pipeline_row(8, 640, 40, eight, {88.497, 3.105}, size),
  };
}

std::vector<Experiment> small_speed_experiments() {
  auto experiments = reduced(speed_experiments(), 32, 4);
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
                              speed_experiments(), {10000, 10, 1});

  benchmark.small = with_rows(images_with_masks(96, Mask::kOnes),
                              small_speed_experiments(), {64, 5, 1});
  return benchmark;
}

}  // namespace gpipe::benchmarks
