// In which numbers a model computes.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <optional>
#include <string>

#include "trainer/task.h"
#include "training/autocast.h"

namespace gpipe::trainer {

struct Precision {
  // What operators compute in where they may, with parameters in float32.
  std::optional<at::ScalarType> autocast;
  // What parameters are in, and all else.
  at::ScalarType parameters = at::kFloat;

  // Whether gradients want their losses scaled.
  bool scales() const { return autocast == at::kHalf; }

  // Gives a model parameters and buffers of that type, but leaves integers.
  void convert(torch::nn::Sequential& model) const;

  // A mini-batch for that model.
  Sample prepare(Sample sample) const;

  // For the calling thread and the pipeline's workers, as long as it lives;
  // null without autocast.
  std::unique_ptr<AutocastScope> scope(c10::DeviceType device) const;
};

// float32; amp-float16, amp-bfloat16: autocast; bfloat16: all of it.
// c10::ValueError, with all names, for another one.
Precision precision_of(const std::string& name);

}  // namespace gpipe::trainer
