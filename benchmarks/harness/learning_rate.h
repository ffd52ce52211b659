// A learning rate with warm-up and steps. Does not include LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe::benchmarks {

// The learning rate of Goyal et al. (arXiv 1706.02677). It grows linearly from
// `warmup_from` to `base` over the first `warmup_epochs`. Then each milestone
// divides it by 10.
struct LearningRate {
  double base = 0.1;
  double warmup_from = 0.1;
  double warmup_epochs = 0;
  std::vector<int64_t> milestones;  // epochs, counted from 0

  // Returns the rate after `epochs` epochs, which may be fractional.
  double at(double epochs) const;
};

// Returns the milestones 30, 60 and 80 of 90 epochs, scaled to `epochs` and
// rounded up.
std::vector<int64_t> usual_milestones(int64_t epochs);

}  // namespace gpipe::benchmarks
