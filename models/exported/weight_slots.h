// The weights of an exported program, for readers of other files.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/exported/exported.h"

namespace gpipe::internal {

// A weight of a program, or a buffer or a constant.
struct WeightSlot {
  std::string name;                                    // in Python
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the export
  std::vector<int64_t> sizes;
  bool persistent = true;  // whether state_dict() of the whole program has it
  int tie = 0;             // equal for tied weights
  // The tensors of the layers of this model; equal for tied weights. Empty if
  // only other layers of the program have it.
  std::vector<at::Tensor> tensors;
};

// Returns all weights of the program, also if `model` is a part of it, in
// Python's order. Thread-safe.
std::vector<WeightSlot> weight_slots(const ExportedModel& model);

// Returns a line for each node of the program with an argument that is a
// floating-point dtype, such as that of x.to(torch.float32). Such a node
// computes in the dtype of the export, whatever the dtypes of the weights are.
// Thread-safe.
std::vector<std::string> dtype_constants(const ExportedModel& model);

}  // namespace gpipe::internal
