// Tensors that cross the border of a cell and have memory in common.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

#include "gpipe/runtime/graph.h"

namespace gpipe {

// A layer that returns a tensor twice, or stashes what it returns, gives the
// plain model one variable in two places: what works in place on the one works
// on both, and so does its gradient. Across a border each is a variable of its
// own, of the same memory, or of another one on another device. So what is
// shared there is not to be changed.

// Marks those of `crossings` that share memory with one another
// (Crossing::shared). Views of one tensor count if they overlap, or might.
void mark_shared(std::vector<Crossing>& crossings);

// The shared ones of what a cell gets, to be looked at once its layers have
// run; keeps none of them alive.
class SharedInput {
 public:
  explicit SharedInput(const std::vector<Crossing>& input);

  // c10::Error, naming the partition, if they have been changed in place.
  void check_unchanged(int64_t partition) const;
  // Marks those of `outputs` that are parts of them.
  void mark(std::vector<Crossing>& outputs) const;

 private:
  struct Tensor {
    c10::VariableVersion counter;
    uint32_t version;
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  };
  std::vector<Tensor> tensors_;
};

}  // namespace gpipe
