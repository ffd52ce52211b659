#include <algorithm>
#include <string>
#include <vector>

#include "benchmarks/published/comparison.h"
#include "benchmarks/published/stages.h"

namespace gpipe::benchmarks {
namespace {

int largest(const std::vector<int>& values) {
  return *std::max_element(values.begin(), values.end());
}

// Returns the idle time of the rank that is idle for longest.
double worst_idle(const Timeline& timeline) {
  return *std::max_element(timeline.idle.begin(), timeline.idle.end());
}

}  // namespace

Comparison zero_bubble_formulas() {
  constexpr int kRanks = 8, kMicrobatches = 32;
  constexpr double kForward = 3, kInput = 3, kWeight = 2;
  constexpr double kForWeights = 0.5;  // M_W, in units of M_B
  Comparison comparison;
  comparison.title = "Bubble sizes and peak activations of 1F1B, ZB-H1, ZB-H2";
  comparison.source = "Zero Bubble, arXiv 2401.10241, Table 2";
  comparison.settings =
      "p = 8, m = 32, T_F = T_B = 3, T_W = 2, M_W = M_B / 2; memory in M_B";
  comparison.why = "none";
  const auto add = [&](const std::string& name, const Schedule& schedule,
                       double bubble, double memory) {
    Costs costs = costs_of({kForward, kInput, kWeight}, kRanks);
    costs.activation_bytes.assign(kRanks, 1);
    costs.weight_activation_bytes.assign(kRanks, kForWeights);
    const Timeline timeline = simulate(schedule, costs);
    const double work = kMicrobatches * (kForward + kInput + kWeight);
    const auto& bytes = timeline.peak_bytes;
    comparison.figures.push_back(
        {name, "bubble", bubble, longest_rank(timeline) - work});
    comparison.figures.push_back(
        {name, "memory", memory,
         *std::max_element(bytes.begin(), bytes.end())});
  };
  constexpr int kOthers = kRanks - 1;
  add("1F1B", one_forward_one_backward(kRanks, kMicrobatches),
      kOthers * (kForward + kInput + kWeight), kRanks);
  add("ZB-H1", zero_bubble_h1(kRanks, kMicrobatches),
      kOthers * (kForward + kInput - kWeight), kRanks);
  add("ZB-H2", zero_bubble_h2(kRanks, kMicrobatches),
      kOthers * (kForward + kInput - 2 * kWeight), 2 * kRanks - 1);
  return comparison;
}

Comparison dual_pipe_formulas() {
  constexpr int kStages = 8, kMicrobatches = 20;
  constexpr double kForward = 2, kInput = 2, kWeight = 1.5;
  constexpr double kBackward = kInput + kWeight;
  Comparison comparison;
  comparison.title = "Bubbles and activations of 1F1B, ZB1P and DualPipe";
  comparison.source = "deepseek-ai/DualPipe, README; DeepSeek-V3, Table 2";
  comparison.settings =
      "PP = 8 stages, 20 micro-batches, F = 2, B = 3.5, W = 1.5. DualPipe: our "
      "dualpipe-v, which has the same chunks on half as many ranks and one "
      "copy "
      "of the parameters, with F&B = F + B (no overlap) and F&B = B (full)";
  comparison.why = "none";
  const auto add = [&](const std::string& name, const Schedule& schedule,
                       double overlap, double bubble, double activations) {
    Costs costs = costs_of({kForward, kInput, kWeight}, kStages);
    costs.overlap = overlap;
    const Timeline timeline = simulate(schedule, costs);
    comparison.figures.push_back(
        {name, "bubble", bubble, worst_idle(timeline)});
    comparison.figures.push_back(
        {name, "activations", activations,
         static_cast<double>(largest(timeline.peak_in_flight))});
  };
  add("1F1B", one_forward_one_backward(kStages, kMicrobatches), 0,
      (kStages - 1) * (kForward + kBackward), kStages);
  add("ZB1P", zero_bubble_h1(kStages, kMicrobatches), 0,
      (kStages - 1) * (kForward + kBackward - 2 * kWeight), kStages);
  for (const double overlap : {0.0, 1.0}) {
    const double both = kForward + kBackward - overlap * kForward;
    add(overlap == 0 ? "DualPipe, no overlap" : "DualPipe, full overlap",
        dual_pipe_v(kStages / 2, kMicrobatches), overlap,
        (kStages / 2 - 1) * (both + kBackward - 3 * kWeight), kStages + 1);
  }
  return comparison;
}

Comparison controllable_memory() {
  // Of each number of ranks: the idle chunks and the peak chunks of V-Half and
  // V-Min.
  struct Row {
    int ranks;
    double half_idle, half_peak, min_idle, min_peak;
  };
  constexpr Row kRows[] = {
      {4, 5, 6, 11, 4}, {6, 11, 8, 17, 6}, {8, 17, 10, 27, 8}};
  constexpr int kMicrobatches = 24;
  Comparison comparison;
  comparison.title = "Idle time and peak activations of V-Half and V-Min";
  comparison.source =
      "Controllable Memory, arXiv 2405.15362; figures from a run of the "
      "authors' generator (sail-sg/zero-bubble-pipeline-parallelism)";
  comparison.settings = "F = B = W = 1 per chunk, 24 micro-batches; in chunks";
  comparison.why = "none";
  for (const Row& row : kRows) {
    const auto add = [&](const std::string& name, const Schedule& schedule,
                         double idle, double peak) {
      const Timeline timeline = simulate(schedule, costs_of({}, 2 * row.ranks));
      const std::string setting = std::to_string(row.ranks) + " ranks, " + name;
      comparison.figures.push_back(
          {setting, "idle", idle, worst_idle(timeline)});
      comparison.figures.push_back(
          {setting, "peak", peak,
           static_cast<double>(largest(timeline.peak_in_flight))});
    };
    add("V-Half", v_half(row.ranks, kMicrobatches), row.half_idle,
        row.half_peak);
    add("V-Min", v_min(row.ranks, kMicrobatches), row.min_idle, row.min_peak);
  }
  return comparison;
}

}  // namespace gpipe::benchmarks
