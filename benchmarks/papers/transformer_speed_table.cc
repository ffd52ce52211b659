#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/workloads.h"
#include "benchmarks/papers/tables.h"
#include "benchmarks/papers/transformer_model.h"

namespace gpipe::benchmarks {
namespace {

constexpr TransformerShape kSmallShape{128, 64, 1000};

// The mini-batch of all rows. GPipe adjusted it to the memory and does not give
// it; here it is that of table 1, so that each of 32 micro-batches has one row.
// GPipe does not give the balance either; here blocks are cut evenly.
constexpr int64_t kBatch = 32;

// The numbers of blocks.
struct Depth {
  int64_t tpu, p100;  // in table 2 and in table 3
};

// Returns `row` with its mini-batch, balance, size and published speed-up.
Experiment with(Experiment row, int64_t blocks, const TransformerShape& shape,
                double speed_up) {
  row.batch_size = kBatch;
  row.balance = even_balance(blocks, row.partitions);
  row.published = {speed_up};
  row.size = size_of(blocks, shape);
  return row;
}

std::vector<Experiment> experiments(Depth depth,
                                    const TransformerShape& shape) {
  const auto table_2 = [&](int64_t partitions, int64_t chunks,
                           double speed_up) {
    return with(table_2_row(partitions, chunks), depth.tpu, shape, speed_up);
  };
  const auto table_3 = [&](int64_t partitions, double speed_up) {
    return with(table_3_row(partitions), depth.p100, shape, speed_up);
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
                experiments({48, 24}, kGPipeShape), {320, 10, 1});

  benchmark.small =
      with_rows(tokens(kSmallShape.tokens, kSmallShape.vocabulary),
                experiments({8, 4}, kSmallShape), {128, 5, 1});
  return benchmark;
}

}  // namespace gpipe::benchmarks
