// A check that no layer uses parameters of layers on other ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "gpipe/runtime/step/step.h"

namespace gpipe::internal {

// A set of parameters that belong to other ranks. Holds weak references: it
// does not keep the parameters alive.
//
// Not thread-safe.
class ForeignParameters {
 public:
  // Adds a parameter of a layer on rank `rank` of the pipeline.
  // `name`: its name in the Sequential ("3.weight").
  void add(std::string name, int rank, const at::Tensor& parameter);

  // Throws c10::ValueError if one of the parameters is among `leaves`, the
  // leaves of the autograd graphs of this rank. A layer of this rank has
  // captured it then, so that two ranks have a copy each, with different parts
  // of the gradient.
  void check(const std::vector<SharedLeaf>& leaves) const;

 private:
  struct Foreign {
    std::string name;
    int rank;
    // A weak reference, so that no other TensorImpl gets the same address.
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  };
  std::unordered_map<const c10::TensorImpl*, Foreign> all_;
};

}  // namespace gpipe::internal
