// The choice of a plan, by balancing/planner. Internal to balancing.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/plan.h"
#include "balancing/workload.h"

namespace gpipe::balancing::detail {

// Returns how many partitions can compute at the same time.
int64_t workers_of(const std::vector<PlanDevice>& devices,
                   const PlanOptions& options);

// Plans for the best of PlanOptions::schedules(); see
// balancing/planner/search.h. Throws InfeasibleError if nothing fits.
Plan plan_search(const std::vector<PlanSample>& samples,
                 const std::vector<PlanDevice>& devices,
                 const PlanOptions& options);

}  // namespace gpipe::balancing::detail
