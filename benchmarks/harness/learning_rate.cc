#include "benchmarks/harness/learning_rate.h"

namespace gpipe::benchmarks {

double LearningRate::at(double epochs) const {
  if (epochs < warmup_epochs) {
    return warmup_from + (base - warmup_from) * epochs / warmup_epochs;
  }
  double rate = base;
  for (const int64_t milestone : milestones) {
    if (epochs >= static_cast<double>(milestone)) rate /= 10;
  }
  return rate;
}

std::vector<int64_t> usual_milestones(int64_t epochs) {
  std::vector<int64_t> milestones;
  for (const int64_t of_ninety : {30, 60, 80}) {
    milestones.push_back((epochs * of_ninety + 89) / 90);
  }
  return milestones;
}

}  // namespace gpipe::benchmarks
