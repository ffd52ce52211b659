// What the parts of automatic_schedule() look up again and again.
// Not for users: automatic.h is.
#pragma once

#include <cstddef>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/automatic_options.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/engine.h"

namespace gpipe {

struct Problem {
  // Errors: those of automatic_schedule(), but for limits that are too low.
  Problem(const std::vector<int>& rank_of_stage, int microbatches,
          const Costs& costs, const AutomaticOptions& options);

  int stages = 0, ranks = 0, microbatches = 0;
  std::vector<int> rank_of;                 // of each stage
  std::vector<std::vector<int>> stages_of;  // of each rank, upwards
  Costs costs;                              // with `backward` in any case
  Durations durations;
  std::size_t links = 0;
  bool may_split = false;      // I and W, in place of B
  bool may_recompute = false;  // R

  // Bytes, of each rank.
  std::vector<double> limit;  // infinite if there is none
  std::vector<double> resident;
  // Bytes, of each stage; see Costs.
  std::vector<double> activation, input, weight;

  int cell(const Action& action) const {
    return action.stage * microbatches + action.microbatch;
  }
  int cells() const { return stages * microbatches; }

  // Bytes that a rank takes when an action starts, and gives back when it ends.
  double taken_by(const Action& action, bool recomputed) const;
  double freed_by(const Action& action, bool recomputed) const;

  // No schedule of any order is shorter: a rank has to wait for its first
  // micro-batch, work, and wait for its last one to come back to the first
  // stage; and a micro-batch has to go through all stages and back.
  double lower_bound() const;
};

}  // namespace gpipe
