// What a training step by a schedule takes and gives; see
// GPipeImpl::train_step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/arg.h>

#include <optional>
#include <vector>

#include "gpipe/runtime/non_finite.h"
#include "gpipe/runtime/value.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

struct TrainOptions {
  // Also give back what the last layer returned.
  TORCH_ARG(bool, outputs) = false;

  // Also give back when each action started and ended.
  TORCH_ARG(bool, timeline) = false;

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
  // of a parameter, or one that leaves the cell. It names the layer, or the
  // parameters; last_failure() gives the place. Masks with infinities between
  // layers count too. Waits for the device after each layer, so it is slow: for
  // looking for a fault. Without it nothing is done.
  TORCH_ARG(bool, check_finite) = false;
};

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
  // the devices' work, for which the step then waits; those of different
  // devices count from when each came to the step.
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
