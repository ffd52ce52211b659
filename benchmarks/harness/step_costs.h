// The simulated time of a training step, computed from a profile of layers.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/profile.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/links.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// Micro-batches of equal size, as an approximation.
struct Microbatches {
  int64_t count = 1;
  double rows = 0;  // rows of each micro-batch
};

// Returns as many micro-batches as torch::chunk makes, but of equal size. For
// example, 5 rows in 4 chunks are 2, 2 and 1, here 3 micro-batches of 5/3 rows.
// So the number of rows is exact, and the error of the warm-up and drain times
// is less than a micro-batch.
Microbatches microbatches_of(int64_t batch_size, int64_t chunks);

// Returns the costs of a micro-batch of `rows` rows on devices that are
// `device_speed` times as fast as the profiled one. Times are proportional to
// rows. A partition takes the sum of the times of its layers, and a recompute
// takes as long as a forward. The link into a partition transfers everything
// that the partition receives, including skip tensors, one transfer at a time.
//
// Throws std::invalid_argument if the balance does not add up to the layers of
// the profile, or if the rows or the speed are not above 0. Thread-safe.
Costs costs_of(const balancing::Profile& profile,
               const std::vector<int64_t>& balance, double rows,
               const Link& link, double device_speed);

// Simulates a step of the experiment with GPipe's schedule. The checkpoint mode
// decides which micro-batches are recomputed. A recompute starts as soon as the
// rank is free, even if the gradient has not arrived (as in GPipe::forward).
// With 0 partitions the step is one forward and backward of the mini-batch,
// without recompute. The loss and the optimizer are not included.
//
// The experiment must have a balance, unless it has 0 partitions. Throws what
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
