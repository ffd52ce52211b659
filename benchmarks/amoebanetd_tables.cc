// The tables about AmoebaNet-D.
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/tables.h"
#include "models/amoebanet.h"

namespace gpipe::benchmarks {

namespace {

// The name of the column for Experiment::size. Its numbers are the arguments of
// amoebanetd_of().
constexpr char kAmoebaNetSize[] = "(L, D)";

// Returns an AmoebaNet-D of L normal cells and D filters for ImageNet's
// classes. (L, D) is `experiment.size`.
torch::nn::Sequential amoebanetd_of(const Experiment& experiment) {
  return models::amoebanetd(kImageNetClasses, experiment.size.at(0),
                            experiment.size.at(1));
}

constexpr int64_t kBatch = 128;

// Published figures: parameters in millions; the memory of the model and of
// activations in the unit of the paper.
struct Published {
  double millions, model;
  std::optional<double> activations;
};

// Returns a row in which a micro-batch is one sample.
Experiment memory_row(int64_t partitions, const std::vector<int64_t>& size,
                      const std::vector<int64_t>& balance, Published torchgpipe,
                      Published gpipe) {
  const int64_t chunks = partitions > 0 ? kBatch : 1;
  Experiment row = pipeline_row(partitions, kBatch, chunks, balance, {}, size);
  for (const auto& [figures, unit] :
       {std::pair(torchgpipe, kGiB), std::pair(gpipe, kGB)}) {
    row.published.emplace_back(figures.millions * 1e6);
    row.published.emplace_back(figures.model * unit);
    row.published.emplace_back();
    if (figures.activations) row.published.back() = *figures.activations * unit;
  }
  return row;
}

std::vector<Experiment> memory_experiments() {
  const std::vector<int64_t> eight{23, 16, 11, 6, 6, 5, 5, 6};
  return {
      memory_row(0, {18, 208}, {}, {81.5, 0.91, {}}, {82, 1.05, 6.26}),
      memory_row(1, {18, 416}, {24}, {319.0, 3.57, 0.91}, {318, 3.8, 3.46}),
      memory_row(2, {18, 544}, {16, 8}, {542.7, 6.07, 3.39}, {542, 6.45, 8.11}),
      memory_row(4, {36, 544}, {16, 12, 7, 7}, {1060, 11.80, 6.91},
                 {1050, 12.53, 15.21}),
      memory_row(8, {72, 512}, eight, {1840, 20.62, 10.83},
                 {1800, 24.62, 26.24}),
  };
}

// Returns the rows at reduced size, for a few CPU cores.
std::vector<Experiment> small_memory_experiments() {
  return reduced(memory_experiments(), 16, 8,
                 {{3, 16}, {3, 32}, {3, 48}, {6, 48}, {12, 48}});
}

}  // namespace

Benchmark amoebanetd_memory_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "amoebanetd_memory",
      "memory of training AmoebaNet-D (L, D) that grow with\nthe number of "
      "devices (RMSprop, cross entropy), beside the published figures of "
      "GPipe\n(table 1) and torchgpipe. If there are fewer accelerators it is "
      "a dry run, which\nallocates no memory.",
      {"", "--experiment=pipeline-1,pipeline-2 --checkpoint=never",
       "--mode=measure --devices=cpu", "--plot=/tmp/memory.svg"}};
  benchmark.title = "AmoebaNet-D, memory";
  benchmark.table_kind = TableKind::kMemory;
  benchmark.size_column = kAmoebaNetSize;
  benchmark.optimizer = Optimizer::kRmsprop;
  benchmark.learning_rate = 0.001;
  benchmark.published = {{"torchgpipe parameters", Figure::kParameters},
                         {"torchgpipe model memory", Figure::kLastingBytes},
                         {"torchgpipe activations", Figure::kActivationBytes},
                         {"GPipe parameters", Figure::kParameters},
                         {"GPipe model memory", Figure::kLastingBytes},
                         {"GPipe activations", Figure::kActivationBytes}};
  benchmark.notes = {
      "torchgpipe's activations are the memory that PyTorch's allocator had "
      "reserved on Tesla P40, minus the model's memory. Its baseline ran out "
      "of memory.",
      "GPipe's figures are of accelerators with 8 GB; a GB is 10^9 bytes. Its "
      "model memory of pipeline-8 is more than 12 bytes per parameter."};
  benchmark.model = amoebanetd_of;
  benchmark.loss = cross_entropy;

  benchmark.paper = with_rows(images_of_classes(224, kImageNetClasses),
                              memory_experiments(), {.epochs = 2});

  benchmark.small = with_rows(images_of_classes(64, kImageNetClasses),
                              small_memory_experiments(), {.epochs = 2});
  return benchmark;
}

namespace {

// Returns the rows with their published figures. In table 2 these are
// torchgpipe's samples per second (8 Tesla P40) and speed-up, and GPipe's
// speed-up (TPUs), both relative to n2m1. In table 3 it is GPipe's speed-up
// relative to two P100s, on one host without NVLink. The paper gives neither
// mini-batches nor balances for table 3: these are those of torchgpipe's rows
// with 32 micro-batches.
std::vector<Experiment> speed_experiments() {
  const std::vector<int64_t> two{9, 15}, four{3, 6, 7, 8},
      eight{2, 2, 2, 3, 3, 4, 4, 4}, size{18, 256}, small_size{18, 128};
  return {
      table_2_row(2, 1, 96, {7, 17}, {26.733, 1, 1}, size),
      table_2_row(2, 4, 256, two, {41.133, 1.539, 1.07}, size),
      table_2_row(2, 32, 1280, two, {47.386, 1.773, 1.21}, size),
      table_2_row(4, 1, 160, {3, 4, 5, 12}, {26.827, 1.004, 1.13}, size),
      table_2_row(4, 4, 360, four, {44.543, 1.666, 1.26}, size),
      table_2_row(4, 32, 1152, four, {72.412, 2.709, 1.84}, size),
      table_2_row(8, 1, 196, {2, 2, 2, 2, 2, 3, 4, 7}, {24.918, 0.932, 1.38},
                  size),
      table_2_row(8, 4, 480, eight, {70.065, 2.621, 1.72}, size),
      table_2_row(8, 32, 1280, eight, {132.413, 4.953, 3.48}, size),
      table_3_row(2, 1280, two, {{}, {}, 1}, small_size),
      table_3_row(4, 1152, four, {{}, {}, 1.7}, small_size),
      table_3_row(8, 1280, eight, {{}, {}, 2.7}, small_size),
  };
}

// Returns the rows at reduced size, for a few CPU cores: the same mini-batch
// for all rows, cut by measured time. The numbers of micro-batches stay, so the
// smallest micro-batch has one sample.
std::vector<Experiment> small_speed_experiments() {
  auto experiments = speed_experiments();
  for (auto& experiment : experiments) {
    experiment.batch_size = 32;
    experiment.balance.clear();
    experiment.size = {6, experiment.base.empty() ? 32 : 16};
  }
  return experiments;
}

}  // namespace

Benchmark amoebanetd_speed_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "amoebanetd_speed",
      "samples per second of training AmoebaNet-D\n(plain SGD, cross entropy) "
      "with n partitions and m micro-batches (n2m32), beside the\npublished "
      "figures of GPipe (tables 2 and 3) and torchgpipe.",
      {"", "--experiment=n2m1,n2m4,n2m32", "--mode=simulate --format=markdown",
       "--mode=simulate --device_speed=1 --link_bandwidth=50e9",
       "--experiment=n2m1,n2m32 --same_batch --control"}};
  benchmark.title = "AmoebaNet-D, training speed";
  benchmark.size_column = kAmoebaNetSize;
  benchmark.base = "n2m1";
  benchmark.published = {{"torchgpipe samples/s", Figure::kSpeed},
                         {"torchgpipe speed-up", Figure::kSpeedUp},
                         {"GPipe speed-up", Figure::kSpeedUp}};
  benchmark.notes = {
      "Speed-ups are relative to n2m1, in the rows p100 relative to p100-n2. "
      "torchgpipe's figures are of 8 Tesla P40, GPipe's of TPUs and of P100s "
      "without NVLink."};
  benchmark.model = amoebanetd_of;
  benchmark.loss = cross_entropy;

  benchmark.paper = with_rows(images_of_classes(224, kImageNetClasses),
                              speed_experiments(), {10000, 10, 1});

  benchmark.small = with_rows(images_of_classes(64, kImageNetClasses),
                              small_speed_experiments(), {64, 4, 1});
  return benchmark;
}

}  // namespace gpipe::benchmarks
