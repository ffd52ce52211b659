// The gain from each mechanism of torchgpipe (Kim et al., arXiv 2004.09910,
// section 3): steps of U-Net in which single mechanisms are switched off,
// simulated or measured, and their table.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "balancing/profile.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/options.h"
#include "benchmarks/harness/simulate.h"
#include "benchmarks/harness/table.h"
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
// The devices and links are those of harness/simulate.h. The timeline includes
// the memory of each rank for plain SGD: parameters and gradients, graphs, and
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

// Returns the benchmark of U-Net in four partitions. In its rows each mechanism
// (Mechanisms) is switched off alone, and the sets of mechanisms of
// torchgpipe's benchmark unet-timeline are switched off together (Kim et al.,
// arXiv 2004.09910). The published columns are samples per second, their ratio
// to those of "all on", and the sum of the bytes of all devices. An epoch is
// one step.
//
// The yardstick is the plain model at the published size, with its samples per
// second on one of torchgpipe's devices (from unet-speed). So no row of the
// table is fitted.
Benchmark timeline_benchmark();

// Returns the mechanisms that are switched on in a row of timeline_benchmark().
// Throws std::invalid_argument for another row.
Mechanisms mechanisms_of(const Experiment& row);

// Sets the timeline of a simulated step (see simulate_ablated())
// and its duration in each row, and adds sentences about the simulation to
// `notes`. The profile and the speed of the devices are those of a Simulator.
// Rows without direct skips use the model with relays. In rows without ordered
// backwards, `options.settings.seed` draws the orders.
//
// `rows`: rows of timeline_benchmark(), all with the same size and balance.
//
// Throws std::invalid_argument for a row of another benchmark, and what
// Simulator and simulate_ablated() throw. Threads: The rules of
// profile_layers() apply.
void simulate_rows(const Benchmark& benchmark, const RunOptions& options,
                   std::vector<Outcome>* rows, std::vector<std::string>* notes);

// Sets the devices and threads of each row, or sets its error if the row cannot
// be measured. The error says that there are too few devices, or that the row
// is without copy streams and nothing is copied, since all its partitions are
// on one device.
//
// `rows`: rows of timeline_benchmark().
void plan_devices(const std::vector<c10::Device>& devices,
                  std::vector<Outcome>* rows);

// Trains each row for `options.epochs` epochs. An epoch is one step: forward,
// loss and backward, without an optimizer. Rows take turns in each epoch, so
// that other work on the machine affects all of them equally.
//
// Sets a duration for each epoch that is not skipped; all devices are idle at
// its start and end. Sets the timeline of the last step if `timelines` is true.
// Rows that have an error are not trained. If a row fails, its error is set and
// the other rows go on.
//
// `rows`: the rows after plan_devices(), all with the same size, balance and
// mini-batch.
//
// Threads: Only one call may run at a time, since the seed is set for the whole
// process.
void measure_rows(const Benchmark& benchmark, const RunOptions& options,
                  bool timelines, std::vector<Outcome>* rows);

// Returns a table with a row per outcome. The columns are: the mode; the median
// of the samples per second; their range, if there are several; the ratio to
// the benchmark's base; the peak memory as a sum over all devices; the idle
// part of the devices' time; and the published columns. Memory and idle time
// come from the timeline. The cell of an unknown figure is empty. The title
// shows the mode, the mini-batch and the balance. The table has no notes; the
// caller adds them.
//
// `rows`: outcomes with the same mode, mini-batch and balance; at least one.
Table timeline_table(const Benchmark& benchmark,
                     const std::vector<Outcome>& rows);

}  // namespace gpipe::benchmarks
