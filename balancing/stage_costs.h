// The costs of the stages of a cut.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/profile.h"
#include "gpipe/simulation.h"

namespace gpipe::balancing {

// Returns the costs of the stages of a cut, with which simulate()
// (gpipe/simulation.h) predicts the time and the peaks that plan() predicts:
//
//   Costs costs = stage_costs(profile, rows, plan.chunks, plan.balance);
//   simulate(plan.schedule(), costs).makespan;  // plan.step_seconds
//
// The mini-batch has `rows` rows, and is split into at most `chunks`
// micro-batches as torch::chunk does. Times (except LayerTime::accumulate) are
// proportional to the mean of their rows, and bytes to those of the largest.
// Devices are `speed` times as fast as the profiled one. `balance`: layers per
// stage. `param_scale`: as in PlanOptions.
//
// The result has no latency and no bandwidth, so copies take no time: set them
// for a plan with PlanOptions::latency() or bandwidth(). The bytes that a stage
// sends are those that the next one receives, with skip tensors.
//
// Throws std::invalid_argument if the balance is empty or does not add up to
// the layers of the profile, if `rows`, `chunks`, `speed` or the rows of the
// profile are not above 0, if one of the profile's times or bytes is negative
// or not finite, if a layer has more trained_bytes than parameter_bytes, or if
// it has not as many times as memory of layers. Threads: pure function.
Costs stage_costs(const Profile& profile, int64_t rows, int64_t chunks,
                  const std::vector<int64_t>& balance, double speed = 1,
                  double param_scale = 2);

namespace planner {
struct Workload;  // balancing/planner/problem.h
}

namespace detail {
// Returns the costs of the layers in a mini-batch of `rows` rows, split into at
// most `chunks` micro-batches as torch::chunk does. All must be > 0, also the
// rows of the profile. Times (except LayerTime::accumulate) and bytes of
// micro-batches are proportional to their rows. `accumulate` is part of the
// backward and of its weight part: M micro-batches have M - 1 additions. If the
// parts of the backward were not measured, both are a half. Throws as
// stage_costs() if a number of the profile is out of its range.
planner::Workload workload_of(const Profile& profile, int64_t rows,
                              int64_t chunks);
}  // namespace detail

}  // namespace gpipe::balancing
