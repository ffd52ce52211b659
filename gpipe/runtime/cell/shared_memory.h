// Tensors at the boundary of a cell that share memory.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/recompute/watched_version.h"

namespace gpipe::internal {

// A layer may return a tensor twice, or stash a tensor that it also returns. In
// the plain model this is one variable in two places: in-place work on one
// changes both, and their gradients add up. At the boundary of a cell the two
// become separate variables, with the same memory, or with copies on another
// device. So layers must not change a shared tensor in place.

// Marks the tensors of `crossings` that share memory with each other
// (Activation::shared). Views of one tensor are marked if they overlap, or if
// this is not known.
void mark_shared(std::vector<Activation>& crossings);

// The shared input tensors of a cell, to be checked after its layers have run.
// Does not keep the tensors alive.
class SharedInput {
 public:
  explicit SharedInput(const std::vector<Activation>& input);

  // Throws c10::Error, with the partition's number, if one of the tensors was
  // changed in place.
  void check_unchanged(int64_t partition) const;
  // Marks the tensors of `outputs` that share memory with one of the inputs.
  void mark(std::vector<Activation>& outputs) const;

 private:
  struct Tensor {
    WatchedVersion version;
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
  };
  std::vector<Tensor> tensors_;
};

// The tensors among a cell's inputs that all micro-batches share
// (Activation::unsplit).
class UnsplitInput {
 public:
  explicit UnsplitInput(const std::vector<Activation>& input);

  // Sets Activation::unsplit of the outputs that a layer has passed on
  // unchanged: same memory, sizes, strides and dtype as an input. Call after
  // SharedInput::check_unchanged().
  void mark(std::vector<Activation>& outputs) const;

 private:
  struct Tensor {
    int element;
    at::Tensor alias;  // without graph
  };
  std::vector<Tensor> tensors_;
};

}  // namespace gpipe::internal
