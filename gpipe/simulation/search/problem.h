// The input of automatic_schedule(), as tables for its parts.
// Internal: users include automatic.h.
#pragma once

#include <cstddef>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/engine.h"
#include "gpipe/simulation/search/options.h"

namespace gpipe::internal {

// Returns a number that is not negative as an index.
inline std::size_t size(int number) { return static_cast<std::size_t>(number); }

// What a cell (stage and micro-batch) holds between its forward and backward.
enum class CellMode : char {
  kKeep,       // all its activations
  kRecompute,  // its input; an R makes the activations again
  kOffload,    // what O does not copy to the host, until L brings it back
};

// The stages, ranks, costs and limits for which a schedule is searched.
struct Problem {
  // Throws std::invalid_argument in the cases of automatic_schedule(), except
  // that it accepts memory limits that are too low.
  Problem(const std::vector<int>& rank_of_stage, int microbatches,
          const Costs& costs, const AutomaticOptions& options);

  int stages = 0, ranks = 0, microbatches = 0;
  std::vector<int> rank_of;                 // of each stage
  std::vector<std::vector<int>> stages_of;  // of each rank, ascending
  Costs costs;                              // always with `backward`
  Durations durations;
  std::size_t links = 0;
  bool is_limited = false;     // whether a rank has a memory limit
  bool may_split = false;      // whether I and W may replace B
  bool may_recompute = false;  // whether there may be an R
  bool may_offload = false;    // whether there may be an O and an L

  // Bytes of each rank.
  std::vector<double> limit;  // infinite if there is none
  std::vector<double> resident;
  // Bytes of each stage; see Costs.
  std::vector<double> activation, input, weight, offload;

  int cell(const Action& action) const {
    return action.stage * microbatches + action.microbatch;
  }
  int cells() const { return stages * microbatches; }

  // Returns whether cells of the stage may have the mode and it can save
  // memory.
  bool allows(CellMode mode, int stage) const;

  // Return the bytes that a rank takes when an action of computation starts,
  // and frees when it ends. `mode`: that of its cell.
  double taken_by(const Action& action, CellMode mode) const;
  double freed_by(const Action& action, CellMode mode) const;

  // Returns a lower bound on the makespan, in seconds. Each rank has to wait
  // for its first micro-batch and do all its work, and then its last gradient
  // has to reach the first stage. Also, one micro-batch has to pass all stages
  // forward and backward.
  double lower_bound() const;
};

}  // namespace gpipe::internal
