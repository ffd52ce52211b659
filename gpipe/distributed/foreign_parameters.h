// Parameters of layers that are on other ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "gpipe/runtime/step.h"

namespace gpipe {

// Knows them as long as somebody has them, without keeping them.
//
// Threads: one.
class ForeignParameters {
 public:
  // `name`: in the Sequential ("3.weight"); `rank`: of the layer.
  void add(std::string name, int rank, const at::Tensor& parameter);

  // c10::ValueError if one of them is what graphs of this rank end in: a layer
  // here has captured it, so that each of the ranks has one of its own, with
  // another part of the gradient.
  void check(const std::vector<SharedLeaf>& leaves) const;

 private:
  struct Foreign {
    std::string name;
    int rank;
    // Nothing else comes to lie where it is.
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  };
  std::unordered_map<const c10::TensorImpl*, Foreign> all_;
};

}  // namespace gpipe
