// Learning rates as functions of the step alone: nothing to save, nothing to
// restore, and the same whether a run has been resumed or not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace gpipe {

// What the base rate is multiplied by at each step, from a text with commas:
//
//   warmup:500,cosine:10000,floor:0.1
//
//   warmup:N          first, for N steps: 1/N, 2/N, ..., 1 (Goyal et al. 2017,
//                     arXiv 1706.02677, gradual warmup)
//
// and then one of these, with x = (steps after the warm-up) / N, at most 1, and
// f the floor:
//
//   constant          1; also if none is given
//   cosine:N          f + (1 - f) (1 + cos(pi x)) / 2 (Loshchilov, Hutter 2017,
//                     arXiv 1608.03983)
//   linear:N          f + (1 - f) (1 - x)
//   polynomial:N:P    f + (1 - f) (1 - x)^P
//   step:N:G          G to the power of how many times N steps have passed, but
//                     at least f
//
//   floor:F           f, from 0 to 1; without it 0
//
// N is a number of steps, greater than 0, that follow those of the warm-up.
//
// Threads: pure functions.
class LearningRateSchedule {
 public:
  // c10::ValueError that says what is wrong with which item.
  explicit LearningRateSchedule(const std::string& spec = "constant");

  // For step 0, 1, ... (the first optimizer.step() is that of step 0).
  // c10::ValueError for a negative one.
  double factor(int64_t step) const;

  // The text that it was made of.
  const std::string& spec() const { return spec_; }

 private:
  enum class Decay { kConstant, kCosine, kPolynomial, kStep };

  std::string spec_;
  int64_t warmup_ = 0;
  Decay decay_ = Decay::kConstant;
  int64_t steps_ = 0;
  double power_ = 1;  // kPolynomial
  double gamma_ = 1;  // kStep
  double floor_ = 0;
};

// The rates that an optimizer's groups have in the beginning.
//
//   LearningRates rates(LearningRateSchedule("warmup:500,cosine:10000"),
//                       optimizer);
//   for (int64_t step = first; ...; ++step) {
//     rates.set(optimizer, step);
//     ...
//     optimizer.step();
//   }
//
// Made before a saved state is loaded into the optimizer, which has the rates
// of some step in it.
class LearningRates {
 public:
  LearningRates(LearningRateSchedule schedule,
                const torch::optim::Optimizer& optimizer);

  // Gives each group its base rate times the factor of the step.
  // c10::ValueError if the optimizer has another number of groups now.
  void set(torch::optim::Optimizer& optimizer, int64_t step) const;

  // What multiplies the base rates.
  const LearningRateSchedule& schedule() const { return schedule_; }

 private:
  LearningRateSchedule schedule_;
  std::vector<double> base_;
};

}  // namespace gpipe
