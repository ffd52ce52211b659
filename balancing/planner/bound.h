// Lower bounds on the step time of a candidate with any cut. No LibTorch.
#pragma once

#include <string>
#include <vector>

#include "balancing/planner/candidate.h"
#include "balancing/planner/stages.h"

namespace gpipe::balancing::planner {

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

}  // namespace gpipe::balancing::planner
