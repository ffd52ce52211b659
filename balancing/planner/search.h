// The search for the candidate and the cut with the smallest step time. No
// LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "balancing/planner/evaluate.h"
#include "balancing/planner/problem.h"

namespace gpipe::balancing::planner {

// A candidate after the search.
struct Tried {
  Candidate candidate;
  // A lower bound in seconds for all cuts, without memory limits.
  double lower_bound = 0;
  // Seconds of the best cut that was found, with its sums of gradients;
  // infinity if none fits. If the candidate was not simulated, a lower bound
  // that says that it is not the best one of its family.
  double seconds = 0;
  bool simulated = false;
  Balance balance;  // empty if there is none
};

// The result of choose().
struct Choice {
  Tried best;
  Prediction prediction;     // of `best`
  std::vector<Tried> tried;  // all candidates, the simplest first
  // The best of each family (a schedule with a number of stages per rank),
  // with and without offload, that fits; the fastest first.
  std::vector<Tried> families;
  int64_t simulations = 0;
};

// Returns the candidate and the cut with the smallest step time that was found
// within the memory limits, or nullopt if nothing fits.
//
// The candidates of a family are tried in the order of their lower bounds, as
// long as these are below the best time of the family. If a candidate has few
// enough cuts (Effort), all are tried, and the result is exact: no cut of any
// candidate is faster. Otherwise the most even cut is simulated (or one that
// fits, if it does not), and then local searches from several cuts improve the
// best candidates. Cuts whose lower bound is too long
// are not simulated.
//
// Times within a relative 1e-9 count as equal. Among equal candidates the
// simplest one is chosen, in the order of candidates().
//
// `problem` must have passed check(). The result depends on the arguments
// alone. Threads: pure function.
std::optional<Choice> choose(const Problem& problem, const Effort& effort = {});

// The memory limits with which a problem would have a plan that fits.
struct LeastMemory {
  // The smallest memory limit of every rank, in bytes, that is known to
  // suffice, and the smallest factor of all limits; infinity if a rank has no
  // memory at all.
  double bytes = 0, factor = 0;
};

// Returns how much memory would be enough for a problem for which choose()
// returns nullopt. Offload is not considered. With few enough cuts (Effort) and
// with one stage per rank, no smaller limit is enough. With very many, the cuts
// are even ones.
LeastMemory least_memory(const Problem& problem, const Effort& effort = {});

}  // namespace gpipe::balancing::planner
