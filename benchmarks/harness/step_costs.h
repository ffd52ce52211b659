// From a profile of layers to the time of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/profile.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/links.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// The micro-batches that torch::chunk makes, as equal ones: 5 rows in 4 chunks
// are 2, 2 and 1, here 3 of 5/3. So all have the rows of the mini-batch, and
// the time of filling and draining is late by less than a micro-batch.
struct Microbatches {
  int64_t count = 1;
  double rows = 0;  // of each
};
Microbatches microbatches_of(int64_t batch_size, int64_t chunks);

// Of a micro-batch of `rows` rows on devices that are `device_speed` times as
// fast as the profiled one: times are proportional to rows, a partition takes
// the sum of its layers, a recompute as long as a forward. Over the link into a
// partition goes all that it gets from others, skip tensors included: the
// device at its end receives one thing at a time.
//
// std::invalid_argument unless the balance is that of the profile's layers,
// there are rows and the speed is above 0. Threads: pure function.
Costs costs_of(const balancing::Profile& profile,
               const std::vector<int64_t>& balance, double rows,
               const Link& link, double device_speed);

// The experiment's step by GPipe's schedule, with a recompute before the
// backward of each micro-batch that its checkpoint mode says: as soon as the
// rank is free, whether or not the gradient has come (as in GPipe::forward).
// 0 partitions: one forward and backward of the mini-batch, without recompute.
// Neither the loss nor the optimizer is in it.
//
// The balance must be given, unless there are 0 partitions. Errors: as above.
Timeline simulate_step(const balancing::Profile& profile,
                       const Experiment& experiment, const Link& link,
                       double device_speed);

// The device_speed with which simulate_step() takes `seconds`, > 0, to a part
// in 10^9. std::invalid_argument if there is none, since the copies alone take
// longer.
double speed_for(const balancing::Profile& profile,
                 const Experiment& experiment, const Link& link,
                 double seconds);

}  // namespace gpipe::benchmarks
