// The number formats in which a model computes.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <optional>
#include <string>

#include "training/autocast.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// A choice of number formats.
struct Precision {
  // The dtype for operators that autocast runs in lower precision.
  std::optional<at::ScalarType> autocast;
  // The dtype of the parameters and of everything that autocast does not cast.
  at::ScalarType parameters = at::kFloat;

  // Returns whether the loss must be scaled (see GradScaler).
  bool scales() const { return autocast == at::kHalf; }

  // Converts the floating-point parameters and buffers of `model` to
  // `parameters`.
  void convert(torch::nn::Sequential& model) const;

  // Converts the inputs of a mini-batch for the converted model, if they have
  // floating-point values.
  Sample prepare(Sample sample) const;

  // Returns an autocast scope for the calling thread and the pipeline's
  // workers, or null if autocast is not used.
  std::unique_ptr<AutocastScope> scope(c10::DeviceType device) const;
};

// Returns the precision for a name. float32 and bfloat16 use this dtype for
// everything. amp-float16 and amp-bfloat16 use autocast with parameters in
// float32. Throws c10::ValueError, which lists all names, for any other name.
Precision precision_of(const std::string& name);

}  // namespace gpipe::train_program
