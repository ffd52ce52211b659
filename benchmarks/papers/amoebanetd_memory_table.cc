#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/workloads.h"
#include "benchmarks/papers/amoebanetd_model.h"
#include "benchmarks/papers/tables.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kBatch = 128;

// Published figures: parameters in millions; the memory of the model and of
// activations in the unit of the paper.
struct Published {
  double millions, model;
  std::optional<double> activations;
};

// Returns a row in which a micro-batch is one sample.
Experiment row(int64_t partitions, const std::vector<int64_t>& size,
               const std::vector<int64_t>& balance, Published torchgpipe,
               Published gpipe) {
  const int64_t chunks = partitions > 0 ? kBatch : 1;
  Experiment row = pipeline_row(partitions, kBatch, chunks, balance);
  row.size = size;
  for (const auto& [figures, unit] :
       {std::pair(torchgpipe, kGiB), std::pair(gpipe, kGB)}) {
    row.published.emplace_back(figures.millions * 1e6);
    row.published.emplace_back(figures.model * unit);
    row.published.emplace_back();
    if (figures.activations) row.published.back() = *figures.activations * unit;
  }
  return row;
}

std::vector<Experiment> experiments() {
  const std::vector<int64_t> eight{23, 16, 11, 6, 6, 5, 5, 6};
  return {
      row(0, {18, 208}, {}, {81.5, 0.91, {}}, {82, 1.05, 6.26}),
      row(1, {18, 416}, {24}, {319.0, 3.57, 0.91}, {318, 3.8, 3.46}),
      row(2, {18, 544}, {16, 8}, {542.7, 6.07, 3.39}, {542, 6.45, 8.11}),
      row(4, {36, 544}, {16, 12, 7, 7}, {1060, 11.80, 6.91},
          {1050, 12.53, 15.21}),
      row(8, {72, 512}, eight, {1840, 20.62, 10.83}, {1800, 24.62, 26.24}),
  };
}

// Returns the rows at reduced size, for a few CPU cores.
std::vector<Experiment> small_experiments() {
  return reduced(experiments(), 16, 8,
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
                              experiments(), {.epochs = 2});

  benchmark.small = with_rows(images_of_classes(64, kImageNetClasses),
                              small_experiments(), {.epochs = 2});
  return benchmark;
}

}  // namespace gpipe::benchmarks
