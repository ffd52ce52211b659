#include <string>

#include "benchmarks/published/comparison.h"
#include "benchmarks/published/zero_bubble.h"

namespace gpipe::benchmarks {
namespace {

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
