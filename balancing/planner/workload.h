// A profile as costs of micro-batches. Internal to balancing.
#pragma once

#include <cstdint>

#include "balancing/planner/problem.h"
#include "balancing/profile.h"

namespace gpipe::balancing::detail {

// The number of micro-batches of a step, and their size relative to the rows of
// a profile. The last one may have fewer rows than the others.
struct PlanSample {
  const Profile* profile = nullptr;
  int64_t chunks = 1;
  double mean_scale = 1;  // of all micro-batches: for times
  double most_scale = 1;  // of the largest one: for bytes
};

// Returns the sample for a mini-batch of `rows` rows, split into at most
// `chunks` micro-batches as torch::chunk does. All must be > 0, also the rows
// of the profile.
PlanSample sample_of(const Profile& profile, int64_t rows, int64_t chunks);

// Returns the costs of the layers. Times (except LayerTime::accumulate) and
// bytes of micro-batches are proportional to their rows. `accumulate` is part
// of the backward and of its weight part: M micro-batches have M - 1 additions.
// If the parts of the backward were not measured, both are a half.
planner::Workload workload_of(const PlanSample& sample);

}  // namespace gpipe::balancing::detail
