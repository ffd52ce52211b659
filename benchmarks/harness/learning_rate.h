// Warm-up and steps. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe::benchmarks {

// Goyal et al. (arXiv 1706.02677): a line from `warmup_from` to `base` over the
// first `warmup_epochs`, then a tenth at every milestone that has been passed.
struct LearningRate {
  double base = 0.1;
  double warmup_from = 0.1;
  double warmup_epochs = 0;
  std::vector<int64_t> milestones;  // epochs, counted from 0

  // After `epochs` epochs, which may be a fraction.
  double at(double epochs) const;
};

// 30, 60 and 80 of 90 epochs, scaled to `epochs`.
std::vector<int64_t> usual_milestones(int64_t epochs);

}  // namespace gpipe::benchmarks
