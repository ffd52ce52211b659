// The combinations of choices that the planner tries. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "balancing/planner/problem.h"
#include "gpipe/schedule.h"

namespace gpipe::balancing::planner {

// All choices of a plan, except the cut.
struct Candidate {
  std::string schedule;  // a name of gpipe/schedule/named.h
  int64_t stages_per_rank = 1;
  std::size_t workload = 0;  // in Problem::workloads
  Recompute recompute = Checkpoint::kNever;
  // Whether the cells with at least kOffloadDistance actions of their rank
  // between forward and backward are offloaded in between; see distant_cells().
  bool offload = false;
};

// With 2, the copies of an offloaded cell have an action to run beside.
constexpr int kOffloadDistance = 2;

// Returns all candidates of a valid problem that have at most one stage per
// layer, the simplest first. The order is by: offload, schedule (in the order
// of schedule_names()), stages per rank, micro-batches, recompute mode (in the
// order of the problem).
//
// Candidates that equal a simpler one are left out: schedules for several
// stages per rank that become one of the others with one stage, and
// kWhereNeeded without a memory limit. Only kNever is combined with offload,
// since recomputed cells hold nothing that could be offloaded.
std::vector<Candidate> candidates(const Problem& problem);

// Returns the schedule of `candidate` for this problem, without recomputes and
// offload.
Schedule base_schedule(const Problem& problem, const Candidate& candidate);

// Returns how many of `microbatches` are recomputed, in all stages.
int64_t recomputed_microbatches(Recompute recompute, int64_t microbatches);

}  // namespace gpipe::balancing::planner
