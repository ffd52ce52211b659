#include <string>

#include "benchmarks/published/comparison.h"
#include "benchmarks/published/stages.h"

namespace gpipe::benchmarks {
namespace {

// Returns the time of a mini-batch of fixed size: a model of equal layers in
// `stages`, `microbatches`, all recomputed. A forward takes a third of a plain
// step.
double recomputed_step(const Schedule& schedule, int stages, int microbatches) {
  const double part = 1.0 / (stages * microbatches);
  return simulate(with_recompute(schedule, [](int) { return true; }),
                  costs_of({part, part, part}, stages))
      .makespan;
}

double gpipe_step(int partitions, int microbatches) {
  return recomputed_step(fill_drain(partitions, microbatches), partitions,
                         microbatches);
}

}  // namespace

Comparison gpipe_tpus() {
  // Table 2, in units of 2 partitions and 1 micro-batch.
  struct Row {
    int partitions, microbatches;
    double amoebanet, transformer;
  };
  constexpr Row kRows[] = {
      {2, 1, 1, 1},       {4, 1, 1.13, 1.07}, {8, 1, 1.38, 1.3},
      {2, 4, 1.07, 1.7},  {4, 4, 1.26, 3.2},  {8, 4, 1.72, 4.8},
      {2, 32, 1.21, 1.8}, {4, 32, 1.84, 3.4}, {8, 32, 3.48, 6.3}};
  Comparison comparison;
  comparison.title =
      "Speed-ups of GPipe on TPUs over 2 partitions and 1 micro-batch";
  comparison.source = "GPipe, arXiv 1811.06965, Table 2";
  comparison.settings =
      "equal partitions, a recompute for each micro-batch, free copies, a "
      "mini-batch of one size";
  comparison.why =
      "the paper adjusts the size of the mini-batch to the memory, which more "
      "partitions and micro-batches leave free, and larger ones use a TPU "
      "better: so 4 micro-batches gain more than any schedule can. The cells "
      "of AmoebaNet-D do not divide equally: see docs/results/schedules.md "
      "with the costs of its layers";
  const double base = gpipe_step(2, 1);
  for (const Row& row : kRows) {
    const std::string setting =
        std::to_string(row.partitions) + " partitions, " +
        std::to_string(row.microbatches) +
        (row.microbatches == 1 ? " micro-batch" : " micro-batches");
    const double ours = base / gpipe_step(row.partitions, row.microbatches);
    comparison.figures.push_back(
        {setting, "Transformer-48", row.transformer, ours});
    comparison.figures.push_back({setting, "AmoebaNet-D", row.amoebanet, ours});
  }
  return comparison;
}

Comparison gpipe_gpus() {
  Comparison comparison;
  comparison.title =
      "Speed-ups of GPipe on GPUs without NVLink over 2 partitions";
  comparison.source = "GPipe, arXiv 1811.06965, Table 3";
  comparison.settings =
      "32 micro-batches, otherwise as the table before: copies cost nothing";
  comparison.why =
      "copies through the host's memory, which the paper does not give, and "
      "the unequal cells of AmoebaNet-D";
  const auto add = [&](int partitions, double transformer, double amoebanet) {
    const std::string setting = std::to_string(partitions) + " partitions";
    const double ours = gpipe_step(2, 32) / gpipe_step(partitions, 32);
    comparison.figures.push_back(
        {setting, "Transformer-24", transformer, ours});
    comparison.figures.push_back({setting, "AmoebaNet-D", amoebanet, ours});
  };
  add(4, 1.8, 1.7);
  add(8, 3.3, 2.7);
  return comparison;
}

Comparison torchtitan() {
  constexpr int kRanks = 8;
  constexpr double kTheirs = 128.0 / 100.0;  // tokens per second and GPU
  Comparison comparison;
  comparison.title =
      "Interleaved 1F1B over 1F1B: Llama 3.1 405B on 512 H100 (8 ranks)";
  comparison.source =
      "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, Table 5";
  comparison.settings =
      "local batch of 32, full recompute, equal stages, 2 stages per rank, "
      "free copies. The numbers of micro-batches and of stages are not given; "
      "torchtitan's default is one micro-batch per rank or stage";
  comparison.why =
      "the settings that are not given. With 8 micro-batches of both "
      "schedules, the default, and 2 stages per rank the ratio is within 3 %";
  for (const int microbatches : {8, 16, 32}) {
    const double ratio =
        recomputed_step(one_forward_one_backward(kRanks, microbatches), kRanks,
                        microbatches) /
        recomputed_step(interleaved(kRanks, microbatches, 2), 2 * kRanks,
                        microbatches);
    comparison.figures.push_back(
        {std::to_string(microbatches) + " micro-batches", "ratio", kTheirs,
         ratio});
  }
  return comparison;
}

}  // namespace gpipe::benchmarks
