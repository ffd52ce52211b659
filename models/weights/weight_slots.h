// The weights of an exported program, which a folder of transformers fills.
// models/exported defines the functions of hugging_face.h that take an
// ExportedModel by those of this file.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/weights/hugging_face.h"
#include "models/weights/names.h"

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

// All weights of a program, in Python's order, also if only a part of its
// layers is there.
struct WeightSlots {
  std::vector<WeightSlot> slots;
  // A line for each node of the program with an argument that is a
  // floating-point dtype, such as that of x.to(torch.float32). Such a node
  // computes in the dtype of the export, whatever the dtypes of the weights
  // are.
  std::vector<std::string> dtype_constants;
};

// Do what the functions of hugging_face.h do for a model with these weights.
void load_hugging_face(const std::string& folder, const WeightSlots& weights,
                       const HuggingFaceOptions& options);
NameTable hugging_face_names(const std::string& folder,
                             const WeightSlots& weights);

}  // namespace gpipe::internal
