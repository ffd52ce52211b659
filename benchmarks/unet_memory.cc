// How large a U-Net (B, C) fits into how many devices, as in torchgpipe's
// benchmark unet-memory.

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/run.h"
#include "benchmarks/workloads.h"
#include "models/unet.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kBatch = 32;

// Published: torchgpipe's parameters, in millions, and the memory of all
// devices, in GiB.
Experiment row(const std::string& name, int64_t partitions,
               const std::vector<int64_t>& size, int64_t chunks,
               const std::vector<int64_t>& balance, double millions,
               double gib) {
  return {name,
          partitions,
          kBatch,
          chunks,
          balance,
          // The last of more micro-batches than rows is none, and torchgpipe
          // recomputes all that there are.
          chunks > kBatch ? Checkpoint::kAlways : Checkpoint::kExceptLast,
          {millions * 1e6, gib * kGiB},
          size,
          ""};
}

std::vector<Experiment> experiments() {
  const std::vector<int64_t> eight{800, 140, 62, 36, 36, 36, 36, 987};
  return {
      row("baseline", 0, {6, 72}, 1, {}, 362.2, 20.3),
      row("pipeline-1", 1, {11, 128}, 32, {505}, 2210, 20.5),
      row("pipeline-2", 2, {24, 128}, 32, {526, 551}, 4990, 43.4),
      row("pipeline-4", 4, {24, 160}, 32, {472, 54, 36, 515}, 7800, 79.1),
      row("pipeline-8", 8, {48, 160}, 128, eight, 15820, 154.1),
  };
}

// The same for a few CPU cores.
std::vector<Experiment> small_experiments() {
  return reduced(experiments(), 8, 8,
                 {{1, 8}, {2, 8}, {2, 16}, {3, 16}, {3, 24}});
}

Benchmark make_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "unet_memory",
      "memory of training U-Nets (B, C) that grow with the\nnumber of devices, "
      "up to 15.8 billion parameters on 8, beside the published figures\nof "
      "torchgpipe. Without that many accelerators it is a dry run, which takes "
      "no memory.",
      {"", "--experiment=pipeline-8 --format=csv",
       "--checkpoint=never --experiment=baseline,pipeline-1",
       "--mode=measure --devices=cpu", "--plot=/tmp/memory.svg"}};
  benchmark.title = "U-Net, memory";
  benchmark.subject = Subject::kMemory;
  benchmark.size_column = "(B, C)";
  benchmark.published = {{"torchgpipe parameters", Figure::kParameters},
                         {"torchgpipe total memory", Figure::kTotalBytes}};
  benchmark.notes = {
      "torchgpipe's memory is what PyTorch's allocator had reserved on Tesla "
      "P40, which is more than what tensors held."};
  benchmark.model = [](const Experiment& experiment) {
    return models::unet(5, experiment.size.at(0), experiment.size.at(1));
  };
  benchmark.loss = mask_loss;

  benchmark.paper = images_with_masks(192, Mask::kRandom);
  benchmark.paper.epochs = 2;
  benchmark.paper.experiments = experiments();

  benchmark.small = images_with_masks(64, Mask::kRandom);
  benchmark.small.epochs = 2;
  benchmark.small.experiments = small_experiments();
  return benchmark;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  return gpipe::benchmarks::run_benchmark(argc, argv,
                                          gpipe::benchmarks::make_benchmark());
}
