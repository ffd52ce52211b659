// Published figures, and simulations of their settings by equal stages.
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "benchmarks/published.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {
namespace {

std::string text_of(double value) { return absl::StrFormat("%.4f", value); }

}  // namespace

double largest_deviation(const Comparison& comparison) {
  double largest = 0;
  for (const PublishedFigure& figure : comparison.figures) {
    const double deviation = std::abs(figure.ours - figure.theirs);
    if (std::isnan(deviation)) return deviation;
    largest = std::max(largest, deviation);
  }
  return largest;
}

std::ostream& operator<<(std::ostream& stream, const Comparison& comparison) {
  stream << comparison.title << "\n  source: " << comparison.source
         << "\n  settings: " << comparison.settings << "\n";
  std::vector<std::vector<std::string>> table = {
      {"setting", "", "theirs", "ours", "deviation"}};
  for (const PublishedFigure& figure : comparison.figures) {
    table.push_back({figure.setting, figure.name, text_of(figure.theirs),
                     text_of(figure.ours),
                     text_of(figure.ours - figure.theirs)});
  }
  return stream << columns_text(table, "llr") << "  largest deviation: "
                << text_of(largest_deviation(comparison))
                << "\n  why: " << comparison.why << "\n\n";
}

namespace {

// The seconds of the actions of one stage, and of a copy between ranks.
struct StageTimes {
  double forward = 1, backward_input = 1, backward_weight = 1, latency = 0;
};

// Returns the costs of `stages` equal stages. A recompute takes as long as a
// forward.
Costs costs_of(const StageTimes& times, int stages) {
  Costs costs;
  costs.forward.assign(stages, times.forward);
  costs.backward_input.assign(stages, times.backward_input);
  costs.backward_weight.assign(stages, times.backward_weight);
  costs.backward.assign(stages, times.backward_input + times.backward_weight);
  costs.recompute.assign(stages, times.forward);
  costs.latency = times.latency;
  return costs;
}

// Returns the longest time between the first start and the last end of a rank,
// which Zero Bubble calls the cost of a schedule. The makespan also has the
// time before the first start.
double longest_rank(const Timeline& timeline) {
  double longest = 0;
  for (const auto& spans : timeline.ranks) {
    double end = 0;
    for (const Span& span : spans) end = std::max(end, span.end);
    if (!spans.empty()) longest = std::max(longest, end - spans[0].start);
  }
  return longest;
}

int largest(const std::vector<int>& values) {
  return *std::ranges::max_element(values);
}

// Returns the idle time of the rank that is idle for longest.
double worst_idle(const Timeline& timeline) {
  return *std::ranges::max_element(timeline.idle);
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
        {name, "memory", memory, *std::ranges::max_element(bytes)});
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

namespace {

// One row of Tables 5 and 9.
struct ZeroBubbleSetting {
  const char* model;
  int ranks, microbatches;
  // Of the model (Table 3). 1F1B-I has one layer per stage. The first and the
  // last rank have one layer less than the others, so each rank has
  // (layers + 2) / ranks stages.
  int layers;
  // Table 9, in milliseconds. The last one is a copy between ranks.
  double forward, backward_input, backward_weight, latency;
  // Table 5: the bubble rates of 1F1B, 1F1B-I, ZB-H1 and ZB-H2.
  double one_forward, interleaved, h1, h2;

  StageTimes times() const {
    return {forward, backward_input, backward_weight, latency};
  }
};

constexpr ZeroBubbleSetting kZeroBubbleSettings[] = {
    {"1.5B", 8, 24, 22, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585,
     0.1083},
    {"1.5B", 8, 32, 22, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242,
     0.0837},
    {"1.5B", 8, 64, 22, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674,
     0.0444},
    {"6.2B", 8, 24, 30, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.0808, 0.1323,
     0.0698},
    {"6.2B", 8, 32, 30, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.0628, 0.1045,
     0.0559},
    {"6.2B", 8, 64, 30, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0320, 0.0554,
     0.0294},
    {"14.6B", 16, 48, 46, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397,
     0.0672},
    {"14.6B", 16, 64, 46, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.0852, 0.1088,
     0.0516},
    {"14.6B", 16, 128, 46, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576,
     0.0266},
    {"28.3B", 32, 96, 62, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 0.1421,
     0.0641},
    {"28.3B", 32, 128, 62, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106,
     0.0490},
    {"28.3B", 32, 256, 62, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 0.0594,
     0.0257},
};

// Returns m (F + B + W), the time for which each rank works.
double work_of(const ZeroBubbleSetting& setting) {
  return setting.microbatches *
         (setting.forward + setting.backward_input + setting.backward_weight);
}

// Returns the bubble rate of section 5.3: the idle part of the longest rank's
// time.
double bubble_rate(const Timeline& timeline, const ZeroBubbleSetting& setting) {
  const double cost = longest_rank(timeline);
  return (cost - work_of(setting)) / cost;
}

std::string text_of(const ZeroBubbleSetting& setting) {
  return std::string(setting.model) + ", " + std::to_string(setting.ranks) +
         " ranks, " + std::to_string(setting.microbatches) + " micro-batches";
}

double rate(const Schedule& schedule, const ZeroBubbleSetting& setting) {
  return bubble_rate(
      simulate(schedule, costs_of(setting.times(), setting.ranks)), setting);
}

double interleaved_rate(const ZeroBubbleSetting& setting) {
  const int chunks = (setting.layers + 2) / setting.ranks;
  StageTimes times = setting.times();
  times.forward /= chunks;
  times.backward_input /= chunks;
  times.backward_weight /= chunks;
  return bubble_rate(
      simulate(interleaved(setting.ranks, setting.microbatches, chunks),
               costs_of(times, setting.ranks * chunks)),
      setting);
}

}  // namespace

Comparison zero_bubble_rates() {
  Comparison comparison;
  comparison.title = "Bubble rates of 1F1B, 1F1B-I, ZB-H1 and ZB-H2";
  comparison.source = "Zero Bubble, arXiv 2401.10241, Table 5";
  comparison.settings =
      "times of Table 9, equal stages; 1F1B-I has a chunk per layer, and its "
      "chunks divide a stage's time equally";
  comparison.why =
      "all rates of 1F1B, ZB-H1 and ZB-H2 are equal. Our 1F1B-I waits for "
      "2 (p v - 1) copies with v chunks per rank, theirs for p fewer";
  for (const ZeroBubbleSetting& setting : kZeroBubbleSettings) {
    const int p = setting.ranks, m = setting.microbatches;
    const std::string text = text_of(setting);
    comparison.figures.push_back(
        {text, "1F1B", setting.one_forward,
         rate(one_forward_one_backward(p, m), setting)});
    comparison.figures.push_back(
        {text, "1F1B-I", setting.interleaved, interleaved_rate(setting)});
    comparison.figures.push_back(
        {text, "ZB-H1", setting.h1, rate(zero_bubble_h1(p, m), setting)});
    comparison.figures.push_back(
        {text, "ZB-H2", setting.h2, rate(zero_bubble_h2(p, m), setting)});
  }
  return comparison;
}

}  // namespace gpipe::benchmarks
