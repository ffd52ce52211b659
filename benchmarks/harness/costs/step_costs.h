// The simulated time of a training step, computed from a profile of layers.
#pragma once

#include "balancing/profile.h"
#include "benchmarks/harness/costs/links.h"
#include "benchmarks/harness/experiment/experiment.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// Returns the costs of the experiment's stages (balancing/stage_costs.h) on
// devices that are `device_speed` times as fast as the profiled one, with
// copies over links like `link`. With 0 partitions the model is one stage, and
// the mini-batch one micro-batch. Otherwise the experiment must have a balance.
// Throws as balancing::stage_costs(). Thread-safe.
Costs costs_of(const balancing::Profile& profile, const Experiment& experiment,
               const Link& link, double device_speed);

// Simulates a step of the experiment with GPipe's schedule. The checkpoint mode
// decides which micro-batches are recomputed. A recompute starts as soon as the
// rank is free, even if the gradient has not arrived (as in GPipe::forward).
// With 0 partitions the step is one forward and backward of the mini-batch,
// without recompute. The loss and the optimizer are not included. Throws what
// costs_of() throws.
Timeline simulate_step(const balancing::Profile& profile,
                       const Experiment& experiment, const Link& link,
                       double device_speed);

// Returns the `device_speed` with which simulate_step() takes `seconds` (above
// 0), to a relative error of 1e-9. Throws std::invalid_argument if the copies
// alone take longer.
double speed_for(const balancing::Profile& profile,
                 const Experiment& experiment, const Link& link,
                 double seconds);

}  // namespace gpipe::benchmarks
