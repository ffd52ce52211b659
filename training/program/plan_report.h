// A comparison of predicted and measured steps, for --plan.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "training/program/step_memory.h"

namespace gpipe::train_program {

// The seconds and the memory of steps beside their prediction. Not thread-safe.
class PlanReport {
 public:
  // Returns the texts of all processes, by rank. All processes call it.
  using Gather =
      std::function<std::vector<std::string>(const std::string& mine)>;

  // `predicted`: seconds of forward and backward; 0 for no report.
  // `memory`: of this process.
  PlanReport(double predicted, StepMemory memory, Gather gather);

  // Begins forward and backward of a step.
  void begin();
  // Ends forward and backward, which took `seconds`. The first step, which
  // includes warming up, is left out. Returns the report after 10 more steps,
  // once: a line for the time, and one for each device of each process.
  std::optional<std::string> end(double seconds);

  // Returns the report of the steps so far if there was none yet, or nullopt if
  // there was or if there are no steps. All processes call it.
  std::optional<std::string> finish();

 private:
  double predicted_;
  StepMemory memory_;
  Gather gather_;
  bool is_first_ = true;
  std::vector<double> seconds_;
};

}  // namespace gpipe::train_program
