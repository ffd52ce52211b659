// The gain from each mechanism of torchgpipe (Kim et al., arXiv 2004.09910,
// section 3): simulated steps in which single mechanisms are switched off.
#pragma once

#include <cstdint>

#include "balancing/profile.h"
#include "benchmarks/harness/costs/links.h"
#include "benchmarks/harness/experiment/experiment.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// The mechanisms that are switched on.
struct Mechanisms {
  // Skip tensors go directly to the partition that uses them ("portals"). The
  // schedule and the costs do not depend on this member: to switch it off, the
  // caller passes the profile of a model made by relay_skips() (relay.h).
  bool direct_skips = true;
  // Copies overlap with the computation on both devices.
  bool copy_streams = true;
  // A recompute may start before the gradient has arrived.
  bool early_recompute = true;
  // All ranks run the backwards in the same order ("deterministic
  // clock-cycle").
  bool ordered_backward = true;
};

// Returns GPipe's schedule without the mechanisms that are switched off. The
// first `checkpointed` micro-batches are recomputed. Without `ordered_backward`
// each rank runs its backwards in a random order of its own, drawn from `seed`.
//
// Throws std::invalid_argument if a size is below 1.
Schedule ablated_schedule(int partitions, int microbatches, int checkpointed,
                          const Mechanisms& mechanisms, uint64_t seed);

// Returns `costs` for copies that do not overlap with computation. The time of
// a copy is added to the action that produces the tensor on the sending stage
// and to the action that uses it on the receiving stage.
Costs with_copies_in_turn(Costs costs);

// Simulates one step of the experiment (its partitions, batch, chunks,
// checkpoint mode and balance) without the mechanisms that are switched off.
// The devices and links are those of step_costs.h. The timeline includes the
// memory of each rank for plain SGD: parameters and gradients, graphs, and
// inputs.
//
// `profile`: the layers of the model; the relayed model if `direct_skips` is
// off.
//
// Throws what simulate_step() throws.
Timeline simulate_ablated(const balancing::Profile& profile,
                          const Experiment& experiment, const Link& link,
                          double device_speed, const Mechanisms& mechanisms,
                          uint64_t seed);

}  // namespace gpipe::benchmarks
