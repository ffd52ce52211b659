// Learning rates that depend on the step alone. They need no saved state, and a
// resumed run gets the same rates as an uninterrupted one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace gpipe {

// The factor of the base learning rate at each step. A comma-separated text
// defines it:
//
//   warmup:500,cosine:10000,floor:0.1
//
//   warmup:N          the first N steps have 1/N, 2/N, ..., 1 (Goyal et al.
//                     2017, arXiv 1706.02677, gradual warmup)
//   warmup:N:F        the first N steps have F + (1 - F) k / N, for k = 0, 1,
//                     ..., N - 1, with F from 0 to 1000. Python's LinearLR with
//                     start_factor F and total_iters N does the same.
//
// One of these follows. x is (steps after the warm-up) / N, at most 1, and f is
// the floor:
//
//   constant          1; the default
//   cosine:N          f + (1 - f) (1 + cos(pi x)) / 2 (Loshchilov, Hutter 2017,
//                     arXiv 1608.03983)
//   linear:N          f + (1 - f) (1 - x)
//   polynomial:N:P    f + (1 - f) (1 - x)^P, with P from 0 to 100
//   step:N:G          multiplied by G (0 to 1) after every N steps, but at
//                     least f. Python's StepLR does the same, and LibTorch's
//                     torch::optim::StepLR decays one step later.
//   milestones:N:N:G  multiplied by G (0 to 1) at each step N, but at least f.
//                     There may be any number of them. They count from the
//                     first step of the run, as those of Python's MultiStepLR.
//
//   floor:F           sets f, from 0 to 1, of a decay; the default is 0
//
// N is a number of steps greater than 0; except for milestones, after the
// warm-up. The warm-up alone determines the factors of its steps.
//
// Thread-safe.
class LearningRateSchedule {
 public:
  // Throws c10::ValueError, which names the wrong item and what is wrong with
  // it, if `spec` is not valid.
  explicit LearningRateSchedule(const std::string& spec = "constant");

  // Returns the factor of a step. Steps count from 0: the first
  // optimizer.step() is step 0. Throws c10::ValueError if `step` is negative.
  double factor(int64_t step) const;

  // Returns the text that this object was made from.
  const std::string& spec() const { return spec_; }

 private:
  enum class Decay { kConstant, kCosine, kPolynomial, kStep, kMilestones };

  std::string spec_;
  int64_t warmup_ = 0;
  std::optional<double> warmup_from_;  // F; none: from 1/N
  Decay decay_ = Decay::kConstant;
  int64_t steps_ = 0;
  double power_ = 1;  // kPolynomial
  double gamma_ = 1;  // kStep, kMilestones
  std::vector<int64_t> milestones_;
  double floor_ = 0;
};

// The base learning rates of an optimizer's parameter groups, and the schedule
// that changes them.
//
//   LearningRates rates(LearningRateSchedule("warmup:500,cosine:10000"),
//                       optimizer);
//   for (int64_t step = first; ...; ++step) {
//     rates.set(optimizer, step);
//     ...
//     optimizer.step();
//   }
//
// Create this object before a saved state is loaded into the optimizer: that
// state contains the rates of the step at which it was saved.
class LearningRates {
 public:
  // Copies the current rates of `optimizer`'s groups as the base rates.
  LearningRates(LearningRateSchedule schedule,
                const torch::optim::Optimizer& optimizer);

  // Sets the rate of each group to its base rate times the factor of the step.
  // Throws c10::ValueError if the number of groups has changed.
  void set(torch::optim::Optimizer& optimizer, int64_t step) const;

  // Returns the schedule.
  const LearningRateSchedule& schedule() const { return schedule_; }

 private:
  LearningRateSchedule schedule_;
  std::vector<double> base_;
};

}  // namespace gpipe
