#include <numeric>
#include <string>
#include <vector>

#include "benchmarks/published/comparison.h"
#include "benchmarks/published/zero_bubble.h"

namespace gpipe::benchmarks {
namespace {

// The number of candidates of each search. More of them gain little here: most
// of the result comes from list scheduling.
constexpr int kBudget = 200;
// The sequence length of all models (Table 3).
constexpr double kSequence = 1024;

// Returns the schedule that a search finds if each rank may hold the
// activations of `micro_batches` micro-batches.
Timeline searched(const ZeroBubbleSetting& setting, int micro_batches) {
  Costs costs = costs_of(setting.times(), setting.ranks);
  // Table 1: B needs s b (34 h + 5 a s) bytes, and W 32 s b h.
  const double hidden = setting.hidden;
  const double for_weights =
      32 * hidden / (34 * hidden + 5 * setting.heads * kSequence);
  costs.activation_bytes.assign(setting.ranks, 1);
  costs.weight_activation_bytes.assign(setting.ranks, for_weights);
  AutomaticOptions options;
  options.memory_bytes = {static_cast<double>(micro_batches)};
  options.recompute = false;
  options.budget = kBudget;
  std::vector<int> rank_of_stage(setting.ranks);
  std::iota(rank_of_stage.begin(), rank_of_stage.end(), 0);
  return automatic_schedule(rank_of_stage, setting.microbatches, costs, options)
      .timeline;
}

// Returns the bubble rate of the makespan without the time until the first
// micro-batch reaches the last rank.
double rate_after_fill(const Timeline& timeline,
                       const ZeroBubbleSetting& setting) {
  const double fill = (setting.ranks - 1) * (setting.forward + setting.latency);
  const double cost = timeline.makespan - fill;
  return (cost - work_of(setting)) / cost;
}

}  // namespace

Comparison zero_bubble_searched() {
  Comparison comparison;
  comparison.title = "Bubble rates of searched schedules";
  comparison.source = "Zero Bubble, arXiv 2401.10241, Table 5";
  comparison.settings =
      "times of Table 9; automatic_schedule() with memory for p and 2p "
      "micro-batches, of which W needs the part in Table 1. ZB-2p: the bubble "
      "of the makespan after the first micro-batch has reached the last rank";
  comparison.why =
      "in Zero Bubble a rank begins its next step before the others end this "
      "one, so its search shortens the longest rank. Our steps end together, "
      "so our search shortens the makespan. With 2p micro-batches of memory it "
      "reaches the lower bound of all schedules";
  for (const ZeroBubbleSetting& setting : kZeroBubbleSettings) {
    const std::string text = text_of(setting);
    comparison.figures.push_back(
        {text, "ZB-1p", setting.one_p,
         bubble_rate(searched(setting, setting.ranks), setting)});
    comparison.figures.push_back(
        {text, "ZB-2p", setting.two_p,
         rate_after_fill(searched(setting, 2 * setting.ranks), setting)});
  }
  return comparison;
}

}  // namespace gpipe::benchmarks
