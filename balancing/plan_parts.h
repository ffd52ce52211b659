// The two ways in which plan() chooses. Internal to balancing.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/plan.h"
#include "balancing/profile.h"

namespace gpipe::balancing::detail {

// The costs of a number of micro-batches. A micro-batch takes `scale` times as
// long, and as many bytes, as the sample of the profile.
struct PlanSample {
  const Profile* profile = nullptr;
  double scale = 1;
  int64_t chunks = 1;
};

// Returns the seconds of a layer for each micro-batch of `sample`. `accumulate`
// is part of the backward and of its weight part: M micro-batches have M - 1
// additions. If the parts of the backward were not measured, both are a half.
LayerTime microbatch_time(const PlanSample& sample, const LayerTime& time);

// Returns how many partitions can compute at the same time.
int64_t workers_of(const std::vector<PlanDevice>& devices,
                   const PlanOptions& options);

// Sets `idle` and `bubble_share` of the ranks of `timeline`.
void set_idle(const Timeline& timeline, std::vector<PlannedPartition>& parts);

// Plans for PlanOptions::schedule(), with one partition per device: the cut of
// each number of micro-batches and each checkpoint mode is that of
// balance_chain() (balancing/chain/chain.h). Throws InfeasibleError if nothing
// fits.
Plan plan_chain(const std::vector<PlanSample>& samples,
                const std::vector<PlanDevice>& devices,
                const PlanOptions& options);

// Plans for the best of PlanOptions::schedules(); see
// balancing/planner/search.h. Throws InfeasibleError if nothing fits.
Plan plan_search(const std::vector<PlanSample>& samples,
                 const std::vector<PlanDevice>& devices,
                 const PlanOptions& options);

}  // namespace gpipe::balancing::detail
