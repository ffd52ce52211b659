// The options and the result of a training step by a schedule; see
// GPipeImpl::train_step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/any_value.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/device_memory.h"
#include "gpipe/microbatches.h"
#include "gpipe/non_finite_error.h"
#include "gpipe/simulation/timeline.h"
#include "gpipe/weighted_loss.h"

namespace gpipe {

// Options of a training step. Each setter returns the options.
struct TrainOptions {
  // Whether the result contains the outputs of the last layer.
  TORCH_ARG(bool, outputs) = false;

  // Whether the result contains the times of all actions and of copies between
  // devices (see StepResult::timeline).
  TORCH_ARG(bool, timeline) = false;

  // The function that returns the bytes in use on a rank's device, for the
  // timeline. Called before and after each action, on the workers, at the same
  // time. Not called if empty.
  TORCH_ARG(MemoryReader, memory) = device_memory;

  // Whether gradients are added from micro-batch 0 to the last, independent of
  // the schedule. Then parameters have the same bits after any schedule.
  // Otherwise gradients are added in the order of the schedule's backwards.
  //
  // Cost: memory, if the schedule runs backwards in another order. A gradient
  // that comes early is held: with fill_drain() and m micro-batches up to m - 1
  // for each parameter. Schedules that run backwards in order (1F1B,
  // interleaved, zero-bubble) hold nothing more.
  TORCH_ARG(bool, fixed_sum_order) = false;

  // Whether to find the first place where a number is not finite (NaN or
  // infinity). The step then throws NonFiniteError (a c10::Error) if one of
  // these is not finite:
  // - the input of the pipeline, the output or a stashed tensor of a layer, or
  //   the loss;
  // - in the backward of a cell, a gradient of a parameter, or one that leaves
  //   the cell;
  // - the sum of a parameter's gradients over all micro-batches.
  //
  // The error names the layer or the parameters. last_failure() returns the
  // place, except for a sum, which has none. Masks with infinities between
  // layers count too.
  //
  // Slow, because it waits for the device after each layer: use it to find a
  // fault. If false, there is no cost.
  TORCH_ARG(bool, check_finite) = false;
};

// The result of a training step.
struct StepResult {
  // The mean of `losses`, weighted by the rows of the micro-batches. If the
  // loss function returns a WeightedLoss: the sum of all sums divided by
  // `weight`. All tensors of the result are without graph and on the last
  // partition's device.
  at::Tensor loss;
  // The values of the loss function, by micro-batch; of a WeightedLoss its sum.
  // The mean over a part without rows is NaN here and does not count in `loss`.
  std::vector<at::Tensor> losses;
  // The total of WeightedLoss::weight over micro-batches and replicas; set if
  // the loss function returns a WeightedLoss.
  std::optional<double> weight;
  // The sums of WeightedLoss::metrics over micro-batches and replicas, in the
  // order of their first occurrence.
  Metrics metrics;
  // The outputs of the mini-batch; set with TrainOptions::outputs. Each is a
  // tensor, a vector or a tuple of tensors, as the last layer returns it: one
  // for each micro-batch if `split`, else a single one. See output() and
  // output_parts().
  std::optional<std::vector<torch::nn::AnyValue>> outputs;
  // Whether the input was given as Microbatches; set with `outputs`.
  bool split = false;
  // Times in seconds from the beginning of the step; set with
  // TrainOptions::timeline. It is drawn like a simulated timeline: see
  // simulation.h. On accelerators these are the times of the devices' work. The
  // step then waits for the devices at its beginning and at its end. An action
  // starts when all its inputs are on its device.
  //
  // Transfers are the copies from partition to partition, one entry per tensor.
  // There are none on one device, and so none between CPU partitions. `start`
  // and `sent` are by the clock of the source device. `end` is by the clock of
  // the target device, which may differ by some microseconds. In a
  // DistributedPipeline, transfers are this rank's messages. A sent message
  // lasts from when it is passed to the sending thread until its last byte has
  // left; a sender knows no more. A received message lasts from the arrival of
  // its header to that of its last byte.
  //
  // Memory is that of the rank's whole device. If ranks share a device, each
  // shows all of it. It is read when the host issues the work, and drawn at the
  // time of the device's work. Allocations and frees within an action are not
  // seen. See TrainOptions::memory.
  std::optional<Timeline> timeline;

  // Returns the outputs, concatenated, as the type that the last layer returns.
  // Throws c10::TypeError for another type. Throws c10::Error if outputs were
  // not requested, or if the input was given as Microbatches.
  template <typename Output = at::Tensor>
  Output output() const {
    check_outputs(/*split=*/false);
    return output_as<Output>(0);
  }

  // Returns the outputs of the micro-batches, if the input was given as
  // Microbatches. Throws as output() does.
  template <typename Output = at::Tensor>
  Microbatches<Output> output_parts() const {
    check_outputs(/*split=*/true);
    Microbatches<Output> result;
    for (std::size_t i = 0; i < outputs->size(); ++i) {
      result.parts.push_back(output_as<Output>(i));
    }
    return result;
  }

  // Returns the metric `name`. Throws c10::ValueError if there is none.
  const at::Tensor& metric(const std::string& name) const {
    std::string names;
    for (const auto& [key, value] : metrics) {
      if (key == name) return value;
      names += " '" + key + "'";
    }
    C10_THROW_ERROR(
        ValueError,
        c10::str("the loss function has returned no metric '", name,
                 "' (its metrics:", names.empty() ? " none" : names, ")"));
  }

 private:
  template <typename Output>
  Output output_as(std::size_t i) const {
    torch::nn::AnyValue value = (*outputs)[i];
    const Output* const result = value.try_get<Output>();
    TORCH_CHECK_TYPE(result, "the output is ",
                     c10::demangle(value.type_info().name()), ", but ",
                     c10::demangle(typeid(Output).name()),
                     " was asked for; name the type, T, in the call: "
                     "output<T>() or output_parts<T>()");
    return *result;
  }

  void check_outputs(bool in_parts) const {
    TORCH_CHECK(outputs.has_value(),
                "the outputs of a training step are kept with "
                "TrainOptions().outputs(true) only");
    TORCH_CHECK(split == in_parts, "the input was given as ",
                in_parts ? "one value" : "Microbatches", "; call ",
                in_parts ? "output()" : "output_parts()");
  }
};

}  // namespace gpipe
