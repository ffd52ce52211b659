// The tables about Transformers.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/tables.h"
#include "models/transformer.h"

namespace gpipe::benchmarks {

std::vector<int64_t> size_of(int64_t blocks, const TransformerShape& shape) {
  return {blocks, shape.width, shape.tokens, shape.vocabulary};
}

torch::nn::Sequential transformer_of(const Experiment& experiment) {
  const auto& size = experiment.size;
  const int64_t width = size.at(1);
  return models::transformer(models::TransformerOptions()
                                 .num_layers(size.at(0))
                                 .width(width)
                                 .feed_forward(4 * width)
                                 .heads(width / 64)
                                 .sequence(size.at(2))
                                 .vocabulary(size.at(3)));
}

std::vector<int64_t> even_balance(int64_t blocks, int64_t partitions) {
  // A block has two layers: attention and feed-forward.
  const int64_t layers = partitions > blocks ? 1 : 2;
  const int64_t pieces = 2 * blocks / layers;
  std::vector<int64_t> balance;
  for (int64_t j = 0; j < partitions; ++j) {
    balance.push_back(
        layers * (pieces / partitions + (j < pieces % partitions ? 1 : 0)));
  }
  balance.front() += 1;  // the embedding
  balance.back() += 2;   // the norm and the output
  return balance;
}

namespace {

// The mini-batch of table 1 of GPipe's paper. The paper does not give the
// number of micro-batches of that table: here each has one row. For the other
// tables GPipe adjusted the mini-batch to the memory and does not give it; here
// it is the same, so that each of 32 micro-batches has one row. GPipe does not
// give the balance either; here blocks are cut evenly.
constexpr int64_t kBatch = 32;

constexpr char kBase[] = "naive-1";  // the plain model

constexpr TransformerShape kSmallMemoryShape{64, 64, 1000};

// Returns a row with its published figures: parameters in millions; model
// memory and peak activation memory in GiB. The balance is ours.
Experiment memory_row(int64_t partitions, int64_t blocks, double millions,
                      double model, double activations) {
  Experiment row =
      pipeline_row(partitions, kBatch, /*chunks=*/partitions > 0 ? kBatch : 1,
                   {}, {millions * 1e6, model * kGiB, activations * kGiB},
                   size_of(blocks, kGPipeShape));
  if (partitions == 0) row.name = kBase;
  if (partitions > 0) row.balance = even_balance(blocks, partitions);
  return row;
}

std::vector<Experiment> memory_experiments() {
  return {memory_row(0, 3, 282.2, 11.7, 3.15),
          memory_row(1, 13, 785.8, 8.8, 6.4),
          memory_row(8, 103, 5300, 59.5, 50.9),
          memory_row(32, 415, 21000, 235.1, 199.9),
          memory_row(128, 1663, 83900, 937.9, 796.1)};
}

// Returns the rows at reduced size: with the same partitions, and one block per
// partition.
std::vector<Experiment> small_memory_experiments() {
  auto rows = memory_experiments();
  for (auto& row : rows) {
    const int64_t blocks = std::max<int64_t>(1, row.partitions);
    row.size = size_of(blocks, kSmallMemoryShape);
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
                memory_experiments(), {.epochs = 2});
  benchmark.paper.notes = {
      "The loss of the whole mini-batch is computed on the last device. There "
      "the logits of 32 texts of 1024 tokens take 3.9 GiB, and as much again "
      "in the loss and its backward."};

  benchmark.small =
      with_rows(tokens(kSmallMemoryShape.tokens, kSmallMemoryShape.vocabulary),
                small_memory_experiments(), {.epochs = 2});
  return benchmark;
}

namespace {

constexpr TransformerShape kSmallSpeedShape{128, 64, 1000};

// The numbers of blocks.
struct Depth {
  int64_t tpu, p100;  // in table 2 and in table 3
};

// Returns the rows with their published speed-ups.
std::vector<Experiment> speed_experiments(Depth depth,
                                          const TransformerShape& shape) {
  const auto table_2 = [&](int64_t partitions, int64_t chunks,
                           double speed_up) {
    return table_2_row(partitions, chunks, kBatch,
                       even_balance(depth.tpu, partitions), {speed_up},
                       size_of(depth.tpu, shape));
  };
  const auto table_3 = [&](int64_t partitions, double speed_up) {
    return table_3_row(partitions, kBatch, even_balance(depth.p100, partitions),
                       {speed_up}, size_of(depth.p100, shape));
  };
  return {table_2(2, 1, 1),    table_2(2, 4, 1.7), table_2(2, 32, 1.8),
          table_2(4, 1, 1.07), table_2(4, 4, 3.2), table_2(4, 32, 3.4),
          table_2(8, 1, 1.3),  table_2(8, 4, 4.8), table_2(8, 32, 6.3),
          table_3(2, 1),       table_3(4, 1.8),    table_3(8, 3.3)};
}

}  // namespace

Benchmark transformer_speed_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "transformer_speed",
      "samples per second of training Transformers (plain\nSGD, cross entropy) "
      "with n partitions and m micro-batches (n2m32), beside the\npublished "
      "figures of GPipe (tables 2 and 3).",
      {"", "--experiment=n2m1,n2m4,n2m32 --control",
       "--mode=simulate --timeline=/tmp/steps.json"}};
  benchmark.title = "Transformer, training speed";
  benchmark.size_column = kTransformerSize;
  benchmark.base = "n2m1";
  benchmark.published = {{"GPipe speed-up", Figure::kSpeedUp}};
  benchmark.notes = {
      "Speed-ups are relative to n2m1, in the rows p100 relative to p100-n2. "
      "GPipe's figures are of TPUs and of P100s without NVLink. The paper "
      "gives neither mini-batches nor balances: these are ours."};
  benchmark.model = transformer_of;
  benchmark.loss = cross_entropy;

  benchmark.paper =
      with_rows(tokens(kGPipeShape.tokens, kGPipeShape.vocabulary),
                speed_experiments({48, 24}, kGPipeShape), {320, 10, 1});

  benchmark.small =
      with_rows(tokens(kSmallSpeedShape.tokens, kSmallSpeedShape.vocabulary),
                speed_experiments({8, 4}, kSmallSpeedShape), {128, 5, 1});
  return benchmark;
}

}  // namespace gpipe::benchmarks
