// The predicted time and memory of one candidate: lower bounds for any cut,
// and predictions for each. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "balancing/planner/problem.h"
#include "balancing/planner/stages.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/simulation/engine.h"

namespace gpipe::balancing::planner {

// ---- Lower bounds on the step time of a candidate with any cut

// Returns whether some backwards of the named schedule are in two parts.
bool splits_backward(const std::string& schedule);

// Returns the seconds at speed 1 that a candidate spends on each layer per
// micro-batch, on average: forward, backward and recompute.
std::vector<double> layer_work(const Problem& problem,
                               const Candidate& candidate);

// Returns a lower bound, in seconds, on the steps of `candidate` with all cuts,
// on its way to be tight for balanced cuts of one stage per rank:
//
// - With one stage per rank, rank r waits until the first micro-batch has
//   passed the layers before its own, does all of its work, and, if backwards
//   are not split, its last gradient then passes these layers back. The bound
//   is the smallest possible maximum of this time over the ranks.
// - With several, it is all work, spread evenly over the speeds of the ranks.
// - One micro-batch has to pass all layers both ways, on the fastest rank.
// - Ranks that share cores cannot do more than these cores.
//
// Sums of gradients come on top: for any cut they take at least as long as if
// each rank had just so many bytes that all end at the same time.
//
// Copies and memory limits are ignored. Complexity: O(n + 60 p log n) for n
// layers and p ranks.
double lower_bound(const Problem& problem, const Candidate& candidate,
                   const Blocks& blocks);

// ---- The predicted time and memory of one candidate with any cut

// Returns the smallest number f >= 0 with f * limit >= bytes in double
// arithmetic; infinity if there is none, and 0 if the limit is infinite.
double factor_for(double bytes, double limit);

// The prediction for one cut of a candidate.
struct Prediction {
  Schedule schedule;  // with recomputes and offload
  Timeline timeline;
  double sum_seconds = 0;  // after the timeline: Rank::sum of the slowest rank
  StageTable stages;
  std::vector<double> peak_bytes;  // of each rank
};

// Predicts a candidate with any cut. Not thread-safe.
class Evaluator {
 public:
  // All must outlive this object. `blocks`: of the candidate's workload.
  Evaluator(const Problem& problem, const Candidate& candidate,
            const Blocks& blocks);

  const std::vector<int>& rank_of_stage() const { return rank_of_stage_; }
  // Returns the number of actions of the schedule without recomputes.
  std::size_t actions() const { return actions_; }

  // Returns the seconds of a step with its sums of gradients; infinity if a
  // rank has too little memory. If a lower bound says that these are at least
  // `enough`, returns that bound without a simulation.
  double seconds(const Balance& balance, double enough = kInfinity);

  // Returns the factor for all memory limits with which the peaks of all ranks
  // fit: the largest factor_for(). A step fits if it is at most 1. `balance`:
  // as above. Where a rank may recompute stages, it recomputes those with which
  // its peak is smallest. With offload, simulates a step.
  double fullness(const Balance& balance);

  // Returns the peak in bytes of the rank that has most, in the way of
  // fullness().
  double largest_peak(const Balance& balance);

  Prediction predict(const Balance& balance);

  // Returns what a rank holds at most. `where_needed`: whether it recomputes
  // all of its stages besides what the candidate's mode says.
  const std::vector<Held>& held(int rank, bool where_needed);
  const std::vector<int>& stages_of(int rank) const { return stages_of_[rank]; }

  // Returns how often seconds() and predict() have simulated.
  int64_t simulations() const { return simulations_; }

 private:
  // The schedule with some cells recomputed, and its simulator.
  struct Variant {
    Schedule schedule;
    std::unique_ptr<gpipe::internal::Engine> engine;
  };
  // The stages that are recomputed with kWhereNeeded, by stage.
  using Recomputed = std::vector<char>;

  Schedule with_recomputes(const Schedule& schedule,
                           const Recomputed& recomputed) const;
  std::vector<int> by_saved(int rank, const StageTable& table) const;
  Variant& variant(const Recomputed& recomputed);
  const std::vector<Held>& held(int rank, const Recomputed& recomputed);
  bool choose_recomputed(const StageTable& table, Recomputed* recomputed);
  std::vector<double> peaks(const StageTable& table,
                            const Recomputed& recomputed);
  std::vector<double> peaks(Timeline timeline, const StageTable& table) const;
  std::vector<double> least_peaks(const Balance& balance);
  bool fits(const std::vector<double>& peaks) const;
  double lower_bound(const StageTable& table) const;
  double sum_seconds(const StageTable& table) const;
  gpipe::internal::Durations durations(const Variant& variant,
                                       const StageTable& table) const;
  bool shares_cores() const;
  StageTable table_of(const Balance& balance) const;

  const Problem& problem_;
  const Candidate candidate_;
  const Blocks& blocks_;
  Schedule base_;  // without recomputes and offload
  std::vector<int> rank_of_stage_;
  std::vector<std::vector<int>> stages_of_;  // by rank
  std::size_t actions_ = 0;
  bool splits_ = false;  // whether there is a W
  double microbatches_ = 0, recomputed_ = 0;
  std::map<Recomputed, Variant> variants_;
  std::map<std::pair<int, Recomputed>, std::vector<Held>> held_;
  int64_t simulations_ = 0;
};

}  // namespace gpipe::balancing::planner
