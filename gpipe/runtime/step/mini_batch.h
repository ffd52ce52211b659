// The parts of a mini-batch's pass through the pipeline that forward() and
// train_step() share.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/operators/norm_statistics.h"

namespace gpipe::internal {

// A tensor of a split value, without its data: used to join the gradients of
// its pieces.
class Element {
 public:
  // Describes tensor `index` of `pieces`, split by rows.
  Element(std::size_t index, const std::vector<Value>& pieces);
  // Describes tensor `index`, which every micro-batch has whole.
  static Element whole(std::size_t index) { return {Form::kWhole, index}; }
  // Describes tensor `index` of part `microbatch` of a batch that was already
  // split.
  static Element of_part(int64_t microbatch, std::size_t index) {
    Element element(Form::kPart, index);
    element.microbatch_ = microbatch;
    return element;
  }

  // Returns the gradient of the tensor from those of its pieces. `grads`: by
  // micro-batch and tensor. A missing piece counts as zero; undefined if all
  // are missing. The gradients of a tensor that is whole in each piece add up,
  // micro-batch 0 first.
  at::Tensor join(const std::vector<std::vector<at::Tensor>>& grads) const;

  // Writes the pieces of `grad` into `grads`, by micro-batch and tensor; the
  // reverse of join(). Not for a tensor that is whole in each piece.
  void split(at::Tensor grad,
             std::vector<std::vector<at::Tensor>>& grads) const;

 private:
  enum class Form { kRows, kWhole, kPart };
  Element(Form form, std::size_t index) : form_(form), index_(index) {}

  Form form_;
  std::size_t index_;
  int64_t microbatch_ = -1;
  std::vector<int64_t> rows_;   // by micro-batch
  std::vector<int64_t> sizes_;  // of some piece
  at::TensorOptions options_;
};

// A mini-batch as the first partition gets it: tensors without graph, split
// into micro-batches.
class MiniBatch {
 public:
  // Splits `input` into micro-batches of `rows` rows; does not use `rows` if
  // `input` is already split. `with_graph`: whether gradients of the input may
  // be needed.
  MiniBatch(Batch input, std::vector<int64_t> rows, Unsplit unsplit,
            bool with_graph);

  int64_t microbatches() const { return static_cast<int64_t>(pieces_.size()); }
  // Whether the input was already split.
  bool split() const { return input_.split(); }
  // Whether no input tensor has a graph of its own.
  bool leaf() const { return leaf_; }
  // The rows of each micro-batch.
  const std::vector<int64_t>& rows() const { return rows_; }
  // Returns the activations for the first partition, by micro-batch.
  std::vector<Activations> activations() const;

  // A tensor of the input that needs a gradient.
  struct Wanted {
    at::Tensor tensor;
    Element element;
  };
  // Returns the tensors of the input that need gradients.
  std::vector<Wanted> wanted() const;

 private:
  Batch input_;
  Unsplit unsplit_;
  std::vector<Value> pieces_;
  std::vector<int64_t> rows_;
  bool with_graph_;
  bool leaf_ = true;
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
