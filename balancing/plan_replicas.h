// Plans for several replicas of a pipeline (gpipe/distributed/pipeline.h).
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/plan.h"
#include "balancing/profile.h"

namespace gpipe::balancing {

// A plan with a number of replicas.
struct ReplicatedPlan {
  int64_t replicas = 1;  // DistributedOptions::data_parallel
  Plan plan;             // of each replica, with the sums of gradients
};

// Plans for each number of `replicas` and returns the plans that fit, the
// fastest first. Cuts and all other choices are searched for the step with its
// sums of gradients. With d replicas of p devices each, replica k has the
// devices k p, k p + 1, ... and gets rows / d rows (rounded up) of the
// mini-batch. All replicas have the same cut and schedule, so a rank is as
// slow, and has as little memory, as the worst device of that rank in any
// replica, and so do links.
//
// The sums of gradients are assumed to take as long as a ring all-reduce, after
// the backward: 2 (d - 1) / d of the gradients' bytes over the slowest link
// between the devices of a rank, and 2 (d - 1) latencies (Patarasuk and Yuan,
// "Bandwidth optimal all-reduce algorithms", 2009). Gradients are as
// large as trained parameters. Sums that run beside the backward take less.
//
// CPUs share the cores of one machine, and PlanOptions::workers() counts
// partitions, of all replicas: each has its part of them.
//
// `shard_optimizer`: DistributedOptions::shard_optimizer. The state of the
// optimizer, PlanOptions::param_scale() - 2, is divided by d.
//
// Throws InfeasibleError if no number of replicas fits, with what the first one
// would need, c10::ValueError if there are no numbers, if a number is below 1,
// does not divide the devices or exceeds the rows, if there is not one link for
// each pair of devices, or if `options` have gradient_sums(), and what plan()
// throws. Complexity: one plan() per number. Threads: as plan().
std::vector<ReplicatedPlan> plan_replicas(
    const Profile& profile, int64_t rows,
    const std::vector<PlanDevice>& devices,
    const std::vector<int64_t>& replicas, bool shard_optimizer = false,
    const PlanOptions& options = {});

}  // namespace gpipe::balancing
