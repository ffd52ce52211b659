#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/workloads.h"
#include "benchmarks/papers/tables.h"
#include "benchmarks/papers/unet_model.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kBatch = 32;

// Returns a row with torchgpipe's figures: parameters in millions, and the
// memory of all devices in GiB.
Experiment row(int64_t partitions, const std::vector<int64_t>& size,
               int64_t chunks, const std::vector<int64_t>& balance,
               double millions, double gib) {
  Experiment row = pipeline_row(partitions, kBatch, chunks, balance);
  // If there are more chunks than rows, the last chunk does not exist, so
  // torchgpipe recomputes all micro-batches.
  if (chunks > kBatch) row.checkpoint = Checkpoint::kAlways;
  row.published = {millions * 1e6, gib * kGiB};
  row.size = size;
  return row;
}

std::vector<Experiment> experiments() {
  const std::vector<int64_t> eight{800, 140, 62, 36, 36, 36, 36, 987};
  return {
      row(0, {6, 72}, 1, {}, 362.2, 20.3),
      row(1, {11, 128}, 32, {505}, 2210, 20.5),
      row(2, {24, 128}, 32, {526, 551}, 4990, 43.4),
      row(4, {24, 160}, 32, {472, 54, 36, 515}, 7800, 79.1),
      row(8, {48, 160}, 128, eight, 15820, 154.1),
  };
}

// Returns the rows at reduced size, for a few CPU cores.
std::vector<Experiment> small_experiments() {
  return reduced(experiments(), 8, 8,
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
                              experiments(), {.epochs = 2});

  benchmark.small = with_rows(images_with_masks(64, Mask::kRandom),
                              small_experiments(), {.epochs = 2});
  return benchmark;
}

}  // namespace gpipe::benchmarks
