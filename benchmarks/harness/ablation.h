// What each of torchgpipe's mechanisms (Kim et al., arXiv 2004.09910, section
// 3) is worth: steps in which one or the other is missing.
#pragma once

#include <cstdint>

#include "balancing/profile.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/links.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// What is on.
struct Mechanisms {
  // Skip tensors go straight to where they are used ("portals"). What is there
  // instead is in relay.h: it is a matter of the model.
  bool direct_skips = true;
  // Copies run beside what both ends compute.
  bool copy_streams = true;
  // A recompute begins before the gradient is there.
  bool early_recompute = true;
  // All ranks do the backwards in the same order ("deterministic clock-cycle").
  bool ordered_backward = true;
};

// GPipe's schedule, with recomputes of the first `checkpointed` micro-batches,
// less what is off. Without ordered_backward each rank has an order of its own,
// drawn from `seed`. std::invalid_argument for sizes below 1.
Schedule ablated_schedule(int partitions, int microbatches, int checkpointed,
                          const Mechanisms& mechanisms, uint64_t seed);

// `costs` with copies that stop both of their ends for as long as they take:
// the stage that sends has the time in the action that makes what is sent, and
// the one that receives in the action that takes it.
Costs with_copies_in_turn(Costs costs);

// The experiment's step (its partitions, batch, chunks, checkpoint, balance) on
// devices as in step_costs.h, less what is off; with what each rank holds, for
// plain SGD: parameters and gradients, graphs, and what came in. `profile` is
// of the relayed model for steps without direct_skips.
//
// Errors: those of simulate_step().
Timeline simulate_ablated(const balancing::Profile& profile,
                          const Experiment& experiment, const Link& link,
                          double device_speed, const Mechanisms& mechanisms,
                          uint64_t seed);

}  // namespace gpipe::benchmarks
