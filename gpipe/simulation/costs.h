// The costs of the actions of a schedule: time, copies and memory.
#pragma once

#include <array>
#include <vector>

namespace gpipe {

// Seconds and bytes of actions and copies. Lists have one entry per stage. All
// numbers are finite and >= 0.
struct Costs {
  // Seconds per micro-batch. A list may be empty if the schedule has no such
  // action.
  std::vector<double> forward, backward, backward_input, backward_weight,
      recompute;

  // Seconds of each copy between ranks, in addition to bytes / `bandwidth`. A
  // copy carries activations from a stage to the next one, or their gradient
  // back, if the two stages are on different ranks. Copies run beside compute.
  double latency = 0;
  // Bytes that a stage sends to the next one per micro-batch; the gradient has
  // the same size. May be empty if `bandwidth` is unlimited, and needs no entry
  // for the last stage.
  std::vector<double> boundary_bytes;
  // Bytes per second of a link, which is an ordered pair of ranks; 0 is
  // unlimited. The copies of a link run one after the other, in the order in
  // which their actions end. Each occupies the link for bytes / bandwidth and
  // arrives `latency` later.
  double bandwidth = 0;

  // Bytes per second between a rank's device and its host, each way; 0 is
  // unlimited. Each rank has two links, to the host (O) and back (L). A link
  // makes its copies one after the other, beside compute and beside the other
  // link.
  double host_bandwidth = 0;

  // The part, 0 to 1, of the shorter action that is hidden behind the longer
  // one in a block of a forward and a backward (Action::fused_with_next). The
  // block takes f + b - overlap * min(f, b) seconds.
  double overlap = 0;

  // Bytes; an empty list is 0 for every stage. Memory that an action needs only
  // while it runs is not counted.

  // Held from the beginning to the end: parameters, their gradients, ...
  std::vector<double> resident_bytes;
  // Held for the backward, per micro-batch: from the start of the forward (or
  // of the recompute, if there is one) to the end of B, or of W.
  std::vector<double> activation_bytes;
  // Held by the forward of a recomputed micro-batch instead: from its start to
  // the end of B, or of W.
  std::vector<double> input_bytes;
  // Held between the ends of I and W: the part of `activation_bytes` that W
  // needs, and the gradients that I leaves for it. Empty: `activation_bytes`.
  std::vector<double> weight_activation_bytes;
  // The part of `activation_bytes` that O copies to the host and L copies back.
  // It is not held from the end of O's copy to the beginning of L's. Empty: all
  // of it. If the four lists before this one are empty, no memory is computed,
  // and this is only the size of the copies.
  std::vector<double> offload_bytes;
};

// Throws std::invalid_argument if a number is negative, infinite or NaN, if
// `overlap` is above 1, or if memory is computed and a stage has more
// `offload_bytes` than `activation_bytes`. The text names the list and the
// stage.
void check_costs(const Costs& costs);

namespace internal {

// Returns whether a list of bytes that a rank holds is given.
bool has_memory(const Costs& costs);

// The list of Costs for a kind of computation, with its name.
struct ActionCost {
  const char* name;
  std::vector<double> Costs::*list;
};
// In the order of ActionKind.
inline constexpr std::array<ActionCost, 5> kActionCosts = {
    {{"forward", &Costs::forward},
     {"backward", &Costs::backward},
     {"backward_input", &Costs::backward_input},
     {"backward_weight", &Costs::backward_weight},
     {"recompute", &Costs::recompute}}};

}  // namespace internal
}  // namespace gpipe
