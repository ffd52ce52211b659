// What a training step by a schedule takes and gives; see
// GPipeImpl::train_step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/arg.h>

#include <optional>
#include <vector>

#include "gpipe/runtime/device_memory.h"
#include "gpipe/runtime/non_finite.h"
#include "gpipe/runtime/value.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// What a training step does besides; each option returns the options.
struct TrainOptions {
  // Also give back what the last layer returned.
  TORCH_ARG(bool, outputs) = false;

  // Also give back when each action started and ended, and what was copied from
  // device to device (see StepResult::timeline).
  TORCH_ARG(bool, timeline) = false;

  // Asked what a rank's device holds, around each of its actions, for the
  // timeline; an empty one is not asked. On the workers, at the same time.
  TORCH_ARG(MemoryReader, memory) = device_memory;

  // Add gradients up from micro-batch 0 to the last, whatever the schedule, so
  // that parameters have the same bits after any of them. Costs memory where a
  // schedule runs backwards in another order: a gradient that comes before its
  // turn is held, for fill_drain() up to m - 1 for each parameter with m
  // micro-batches. Schedules that run them in order (1F1B, interleaved,
  // zero-bubble) hold nothing more. Without it gradients add up in the order of
  // the schedule's backwards.
  TORCH_ARG(bool, fixed_sum_order) = false;

  // Look for where a number first stops being finite: NonFiniteError (a
  // c10::Error) as soon as the input, what a layer returns or stashes, or the
  // loss holds a NaN or an infinity, or, in the backward of a cell, a gradient
  // of a parameter, or one that leaves the cell, or the sum of a parameter's
  // over all micro-batches. It names the layer, or the parameters;
  // last_failure() gives the place, but of a sum, which has none. Masks with
  // infinities between layers count too. Waits for the device after each layer,
  // so it is slow: for looking for a fault. Without it nothing is done.
  TORCH_ARG(bool, check_finite) = false;
};

// What a training step gives.
struct StepResult {
  // The mean of `losses`, weighted by the rows of the micro-batches. Without
  // graph, as all of these, and on the last partition's device.
  at::Tensor loss;
  // What the loss function returned, by micro-batch.
  std::vector<at::Tensor> losses;
  // Of the mini-batch, if asked for: see TrainOptions::outputs.
  std::optional<Value> outputs;
  // Seconds from the beginning of the step, if asked for. It is drawn as a
  // simulated one is: see simulation.h. On accelerators these are the times of
  // the devices' work, for which the step then waits, as it does at its
  // beginning for what they were given before. An action starts when all that
  // it needs is on its device.
  //
  // Transfers are the copies from partition to partition, a line for each
  // tensor; there are none on one device, and so none between CPU partitions.
  // They start and are sent by the clock of the device that they leave, and end
  // by that of the other one, which may differ by some microseconds.
  // In a DistributedPipeline they are this rank's messages: those that it sends
  // from when they are handed to the sending thread until the last byte has
  // left, which is as much as a sender knows, and those that it receives from
  // when their header is here until the last byte is.
  //
  // Memory is that of the rank's device, whoever holds it: of ranks that share
  // a device each has all of it. It is read as the host gives the work and
  // drawn at the time of the device's; what comes and goes within an action is
  // not seen. See TrainOptions::memory.
  std::optional<Timeline> timeline;

  // The mini-batch's outputs as the type that the last layer returns.
  // c10::TypeError for another one, c10::Error if they were not asked for.
  template <typename Output = at::Tensor>
  Output output() const {
    TORCH_CHECK(outputs.has_value(),
                "the outputs of a training step are kept with "
                "TrainOptions().outputs(true) only");
    return Value(*outputs).unwrap<Output>();
  }
};

}  // namespace gpipe
