// The parts of a mini-batch's pass through the pipeline that forward() and
// train_step() share.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/cell/norm_statistics.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

// A mini-batch as the first partition gets it: tensors without graph, split
// into micro-batches.
struct MiniBatch {
  // Splits `input` as scatter() in microbatch.h does. `with_graph`: whether
  // gradients of the input may be needed.
  MiniBatch(const Value& input, int64_t chunks, bool with_graph);

  int64_t microbatches() const { return static_cast<int64_t>(pieces.size()); }
  // Returns the number of rows of each micro-batch.
  std::vector<int64_t> rows() const;
  // Returns the activations for the first partition, by micro-batch.
  std::vector<Activations> parcels() const;

  std::vector<Value> pieces;
  std::vector<bool> requires_grad;  // by tensor
  // Whether no input tensor has a graph of its own.
  bool leaf = true;
};

// A tensor of a split value, without its data: used to join the gradients of
// its pieces.
struct Element {
  // Describes tensor `index` of `pieces`.
  Element(std::size_t index, const std::vector<Value>& pieces);

  // Returns the gradient of the whole tensor from those of its pieces. `grads`:
  // by micro-batch and tensor. A missing piece counts as zero; undefined if all
  // are missing.
  at::Tensor join(const std::vector<std::vector<at::Tensor>>& grads) const;

  std::size_t index;
  std::vector<int64_t> rows;  // by micro-batch

 private:
  std::vector<int64_t> sizes_;  // of some piece
  at::TensorOptions options_;
};

// Returns the nodes that accumulate into `.grad` of the parameters on
// accelerators. They exist as long as the result lives. Made here, they belong
// to the caller's thread and work on the caller's streams. Otherwise the first
// operator of a cell that needs one would make it on the worker's stream.
std::vector<torch::autograd::Edge> accumulators_of(
    const std::vector<Partition>& partitions);

// The BatchNorm statistics of one mini-batch. The destructor takes back all
// changes unless keep() has been called.
class MiniBatchNorms {
 public:
  explicit MiniBatchNorms(const std::vector<Partition>& partitions);
  ~MiniBatchNorms();
  MiniBatchNorms(const MiniBatchNorms&) = delete;
  MiniBatchNorms& operator=(const MiniBatchNorms&) = delete;

  // To be called in this order. prepare() computes the new buffer values and
  // changes nothing. write() writes all of them, or none if it throws; after it
  // the next mini-batch may begin. keep() makes the change permanent.
  void prepare();
  void write();
  void keep() noexcept;

 private:
  void discard();

  const std::vector<Partition>& partitions_;
  std::vector<NormStatistics::Update> updates_;
  bool written_ = false, kept_ = false;
};

}  // namespace gpipe::internal
