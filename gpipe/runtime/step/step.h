// The state of one step: the stages, the mini-batch with its statistics, the
// cells and their leaves.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/failure.h"
#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/runtime/operators/random.h"
#include "gpipe/runtime/recompute/buffers.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/skip/layout.h"

namespace gpipe::internal {

class MiniBatch;

// The state that stays the same from step to step.
// Threads: partition j, and the copiers of its rank, are used by the rank's
// worker while a pass runs.
struct Stages {
  std::vector<Partition> partitions;
  std::vector<int> rank_of_stage;
  std::deque<Copier> copiers;    // by rank
  std::vector<SkipRoute> links;  // in the order of Partition::exports
  // The elements of the input that every micro-batch gets whole.
  Unsplit unsplit;
  std::string time_first;  // see time_first_layer()

  // `rank_of_stage`: the rank of each partition; ranks count from 0, and the
  // partitions of a rank that are not remote have one device.
  Stages(std::vector<Partition> partitions, std::vector<int> rank_of_stage,
         Unsplit unsplit = {});
  int64_t size() const { return static_cast<int64_t>(partitions.size()); }
  // Returns whether the boundary tensors of a stage, and then each skip tensor
  // that it outputs, go to another device.
  std::vector<bool> leaves_device(int64_t stage) const;
  // Returns a name for a leaf of `stage`, for messages: "parameter '3.weight'"
  // or "a tensor that a layer has captured".
  std::string describe_leaf(int64_t stage, const at::Tensor& leaf) const;
  // Does the same for a leaf of any stage.
  std::string describe_leaf(const at::Tensor& leaf) const;
  // Returns the device of each rank; the CPU for a rank that is remote.
  std::vector<c10::Device> devices() const;
  // Warns once in the life of the process (TORCH_WARN_ONCE) if a layer takes
  // time along the dimension that `batch` was split along.
  void warn_of_split_time(const MiniBatch& batch) const;
};

// A leaf, with its number in the list of each partition of this process that
// uses it, in order of partitions.
struct SharedLeaf {
  at::Tensor tensor;
  std::vector<std::pair<int64_t, int64_t>> places;  // partition, number
  // For TrainStep: the gradient that will be added to `tensor`, and the leaf
  // that gets it if that is another one, such as a shard of `tensor`.
  at::Tensor grad{}, target{};
};

// The state of one mini-batch, from forward to backward.
struct Step {
  // `checkpointed`: whether a cell is checkpointed, by stage and micro-batch.
  // `before`: number of micro-batches that come before these in other pipelines
  // that share the step's random numbers.
  Step(Stages& stages, int64_t microbatches,
       const std::function<bool(int64_t, int64_t)>& checkpointed,
       int64_t before = 0);

  int64_t microbatches() const { return microbatches_; }

  // Numbers the leaves of cell (i, j). Call after its forward. Throws
  // c10::Error if the cell's graph has nodes that are also in the graph of
  // another partition, or that the worker of another partition has made.
  // Threads: partition j's worker.
  void number_leaves(int64_t j, int64_t i);

  // Returns "layer '2' uses a tensor that has been computed outside of the
  // pipeline (by ExpBackward0)", if that is so for a layer of partition j; else
  // "".
  // Threads: any.
  std::string describe_captured(int64_t j);

  // Returns whether another partition also uses `leaf` of partition j.
  // Threads: any, once all forwards have run.
  bool is_shared(int64_t j, const at::Tensor& leaf) const;

  // Returns the leaves of all partitions.
  // Threads: any, while no pass runs.
  std::vector<SharedLeaf> shared_leaves() const;

  // Returns the place of an exception that `action` has just thrown, without
  // `what`.
  Failure failure_at(const Action& action, Phase phase) const;

  // The rank whose worker runs a stage, and its copier. A schedule may place
  // stages differently from Stages::rank_of_stage, on ranks of equal devices.
  std::vector<int> rank_of_stage;
  Copier& copier_of(int64_t stage) {
    return stages_.copiers[rank_of_stage[stage]];
  }

  StepSeed seed;
  at::ThreadLocalState caller;  // of the thread that called forward
  // cells[j][i] is micro-batch i on partition j; none for remote partitions.
  // Cells do not move in memory.
  std::vector<std::deque<Cell>> cells;

  // The leaves of a partition, and the number of each.
  struct Leaves {
    std::vector<at::Tensor> list;
    std::unordered_map<at::TensorImpl*, int64_t> numbers;
  };
  std::vector<Leaves> leaves;  // by partition

 private:
  // Assigns captured graph nodes to partition j. Throws c10::Error if another
  // partition has one of them.
  void claim(int64_t j, std::vector<Cell::Captured> nodes);
  // Throws c10::Error if a worker of another partition has made the node.
  void check_maker(int64_t j, const Cell::Captured& captured) const;

  Stages& stages_;
  const int64_t microbatches_;

  // The thread of each partition's worker, as autograd numbers threads; 0
  // before the first forward.
  std::vector<std::atomic<uint64_t>> threads_;

  // The partition of each node of captured graphs, and the first layer that
  // uses the node, if known.
  struct Claim {
    int64_t partition;
    std::string layer;
  };
  std::mutex claims_mutex_;
  std::unordered_map<NodePtr, Claim> claims_;
};

// A tensor of a split value, without its data: used to join the gradients of
// its pieces.
class Element {
 public:
  // Describes tensor `index` of `pieces`, split by rows.
  Element(std::size_t index, const std::vector<Value>& pieces);
  // Describes `tensor`, number `index`, which every micro-batch has whole.
  static Element whole(std::size_t index, const at::Tensor& tensor);
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
  // micro-batch 0 first, in the dtype of its gradient (Tensor::grad_dtype()).
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
  std::optional<at::ScalarType> grad_type_;
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

  // Refuses backwards through tensors of the input that layers have changed in
  // place, since the graphs of these tensors do not have the change. Call it
  // after the forward, when the edges of the input are not needed any more.
  void refuse_changed() const;

 private:
  Batch input_;
  std::vector<WatchedVersion> versions_;  // of the tensors of input_
  Unsplit unsplit_;
  std::vector<Value> pieces_;
  std::vector<int64_t> rows_;
  bool with_graph_;
  bool leaf_ = true;
};

// Returns the boundary tensors of `output`, made on `device`, for use and
// release on the current stream of `device`.
Value value_of(Activations output, const c10::Device& device);

// Returns the nodes that accumulate into `.grad` of the parameters on
// accelerators. They exist as long as the result lives. Made here, they belong
// to the caller's thread and work on the caller's streams. Otherwise the first
// operator of a cell that needs one would make it on the worker's stream.
std::vector<torch::autograd::Edge> accumulators_of(
    const std::vector<Partition>& partitions);

// The BatchNorm statistics of one mini-batch. The destructor takes back all
// changes unless keep() has been called, or another mini-batch has changed the
// buffers since: the hooks of a step may run another one before they throw.
// Threads: the caller holds the pipeline's lock, also for the destructor if
// keep() has not been called.
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
  std::vector<WatchedVersion> versions_;  // of the buffers, as written
  bool written_ = false, kept_ = false;
};

}  // namespace gpipe::internal
