// What passing a mini-batch through partitions takes, forward only or in whole
// steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/norm_statistics.h"
#include "gpipe/runtime/partition.h"
#include "gpipe/runtime/value.h"

namespace gpipe {

// A mini-batch as the first partition gets it: the tensors without their graph,
// in micro-batches.
struct MiniBatch {
  // As microbatch.h's scatter().
  MiniBatch(const Value& input, int64_t chunks, bool with_graph);

  int64_t microbatches() const { return static_cast<int64_t>(pieces.size()); }
  std::vector<Parcel> parcels() const;

  std::vector<Value> pieces;
  std::vector<bool> requires_grad;  // by tensor
  // No tensor has a graph of its own.
  bool leaf = true;
};

// A tensor of a value that has been split, without its data.
struct Element {
  // Tensor `index` of the pieces.
  Element(std::size_t index, const std::vector<Value>& pieces);

  // The gradient of the whole from those of the pieces, by micro-batch and
  // tensor; undefined if there is none of any.
  at::Tensor join(const std::vector<std::vector<at::Tensor>>& grads) const;

  std::size_t index;
  std::vector<int64_t> rows;  // by micro-batch

 private:
  std::vector<int64_t> sizes_;  // of a piece
  at::TensorOptions options_;
};

// Makes the nodes that accumulate into `.grad` of the parameters on
// accelerators, for as long as the result lives, so that they are the caller's
// and work on the caller's streams. Else the first operator of a cell that
// needs one makes it, on the worker's.
std::vector<torch::autograd::Edge> accumulators_of(
    const std::vector<Partition>& partitions);

// The BatchNorm statistics of a mini-batch, which has failed unless it says
// otherwise.
class MiniBatchNorms {
 public:
  explicit MiniBatchNorms(const std::vector<Partition>& partitions);
  ~MiniBatchNorms();
  MiniBatchNorms(const MiniBatchNorms&) = delete;
  MiniBatchNorms& operator=(const MiniBatchNorms&) = delete;

  // In this order: what the buffers become, before any changes; that they do,
  // all of them, or none if it throws, from when on the next mini-batch may
  // begin; and that they stay so.
  void prepare();
  void write();
  void keep() noexcept;

 private:
  void discard();

  const std::vector<Partition>& partitions_;
  std::vector<NormStatistics::Update> updates_;
  bool written_ = false, kept_ = false;
};

}  // namespace gpipe
