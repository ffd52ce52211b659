// A comparison of predicted and measured steps, for --plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gpipe::train_program {

// The seconds of steps beside their prediction. Not thread-safe.
class PlanReport {
 public:
  // `predicted`: seconds of forward and backward; 0 for no report.
  explicit PlanReport(double predicted) : predicted_(predicted) {}

  // Returns whether the next add() takes a step for the report: not the first
  // one, and none after the report or without a prediction.
  bool counts_next() const { return predicted_ > 0 && !is_first_; }

  // Takes the seconds of a step. The first step, which includes warming up, is
  // left out. Returns a line after 10 more steps, once.
  std::optional<std::string> add(double seconds);

  // Returns the line for the steps so far if there was none yet, or nullopt if
  // there was or if there are no steps.
  std::optional<std::string> finish();

 private:
  double predicted_;
  bool is_first_ = true;
  std::vector<double> seconds_;
};

}  // namespace gpipe::train_program
