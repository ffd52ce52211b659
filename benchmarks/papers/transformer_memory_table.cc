#include <algorithm>
#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/workloads.h"
#include "benchmarks/papers/tables.h"
#include "benchmarks/papers/transformer_model.h"

namespace gpipe::benchmarks {
namespace {

// The mini-batch in GPipe's paper. The paper does not give the number of
// micro-batches: here each has one row.
constexpr int64_t kBatch = 32;

constexpr char kBase[] = "naive-1";  // the plain model

constexpr TransformerShape kSmallShape{64, 64, 1000};

// Returns a row with its published figures: parameters in millions; model
// memory and peak activation memory in GiB. The balance is ours.
Experiment row(int64_t partitions, int64_t blocks, double millions,
               double model, double activations) {
  Experiment row = pipeline_row(partitions, kBatch,
                                /*chunks=*/partitions > 0 ? kBatch : 1, {});
  if (partitions == 0) row.name = kBase;
  if (partitions > 0) row.balance = even_balance(blocks, partitions);
  row.published = {millions * 1e6, model * kGiB, activations * kGiB};
  row.size = size_of(blocks, kGPipeShape);
  return row;
}

std::vector<Experiment> experiments() {
  return {row(0, 3, 282.2, 11.7, 3.15), row(1, 13, 785.8, 8.8, 6.4),
          row(8, 103, 5300, 59.5, 50.9), row(32, 415, 21000, 235.1, 199.9),
          row(128, 1663, 83900, 937.9, 796.1)};
}

// Returns the rows at reduced size: with the same partitions, and one block per
// partition.
std::vector<Experiment> small_experiments() {
  auto rows = gpipe::benchmarks::experiments();
  for (auto& row : rows) {
    const int64_t blocks = std::max<int64_t>(1, row.partitions);
    row.size = size_of(blocks, kSmallShape);
    if (row.partitions > 0) row.balance = even_balance(blocks, row.partitions);
  }
  return rows;
}

}  // namespace

Benchmark transformer_memory_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "transformer_memory",
      "memory of training Transformers that grow with the\nnumber of devices "
      "(RMSprop, cross entropy), up to 83.9 billion parameters on 128,\nbeside "
      "the published figures of GPipe (table 1). If there are fewer "
      "accelerators it is a\ndry run, which allocates no memory.",
      {"", "--experiment=pipeline-128", "--mode=measure --devices=cpu",
       "--plot=/tmp/memory.svg"}};
  benchmark.title = "Transformer, memory";
  benchmark.table_kind = TableKind::kMemory;
  benchmark.size_column = kTransformerSize;
  benchmark.base = kBase;
  // With its gradient and RMSprop's average of squares, a parameter takes 12
  // bytes, as in GPipe's model memory: 83.88e9 x 12 bytes are 937.4 GiB.
  benchmark.optimizer = Optimizer::kRmsprop;
  benchmark.learning_rate = 0.001;
  benchmark.published = {{"GPipe parameters", Figure::kParameters},
                         {"GPipe model memory", Figure::kLastingBytes},
                         {"GPipe activations", Figure::kActivationBytes}};
  benchmark.notes = {
      "GPipe's figures are of Cloud TPUv3 with 16 GB each. Its G are assumed "
      "to be GiB: then its model memory is 12 bytes per parameter, except in "
      "naive-1 (44.5). The paper gives neither micro-batches nor balances: "
      "these are ours."};
  benchmark.model = transformer_of;
  benchmark.loss = cross_entropy;

  benchmark.paper =
      with_rows(tokens(kGPipeShape.tokens, kGPipeShape.vocabulary),
                experiments(), {.epochs = 2});
  benchmark.paper.notes = {
      "The loss of the whole mini-batch is computed on the last device. There "
      "the logits of 32 texts of 1024 tokens take 3.9 GiB, and as much again "
      "in the loss and its backward."};

  benchmark.small =
      with_rows(tokens(kSmallShape.tokens, kSmallShape.vocabulary),
                small_experiments(), {.epochs = 2});
  return benchmark;
}

}  // namespace gpipe::benchmarks
