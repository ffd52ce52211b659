// Cell (i, j): micro-batch i on partition j, forward and backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/graph.h"
#include "gpipe/runtime/partition.h"
#include "gpipe/runtime/random.h"
#include "gpipe/runtime/split_backward.h"
#include "gpipe/runtime/value.h"

namespace gpipe {

class CellTracker;

// What crosses from cell to cell in the forward: the value between two layers,
// and skip tensors (in the order of the partition's imports or exports).
struct Parcel {
  Value::Kind kind = Value::Kind::kTensor;
  std::vector<Crossing> boundary;
  std::vector<Crossing> skips;
};

// The gradients that cross back. Undefined: there is none.
struct GradParcel {
  std::vector<at::Tensor> boundary;
  std::vector<at::Tensor> skips;
};

// A scalar of what the last layer returned and of the target.
using LossFunction = std::function<at::Tensor(Value output, Value target)>;

// Of a micro-batch whose loss is computed in the pipeline, as if by one more
// layer: the cell's output is the loss.
struct LossHead {
  const LossFunction* function = nullptr;
  Value target;
  bool keep_output = false;
  Value output;  // without graph; if it is to be kept
};

// What a recompute must give again.
struct Outline {
  bool defined = false;
  bool requires_grad = false;
  at::ScalarType type = at::kFloat;
  c10::SmallVector<int64_t, 5> sizes;

  friend bool operator==(const Outline& a, const Outline& b) {
    return a.defined == b.defined && a.requires_grad == b.requires_grad &&
           a.type == b.type && a.sizes == b.sizes;
  }
};

// A function from tensors to tensors with a private piece of autograd graph:
// the tensors that come in are cut from the graph of the cell that made them,
// and backward is one run of the engine from what went out to what came in and
// the leaves (parameters).
//
// A checkpointed cell runs forward with gradients enabled as any other, so
// that the operators and the bits are the same and it is known what requires
// grad, but drops its graph at the end and keeps what came in; recompute()
// builds the graph again.
//
// Threads: used by the partition's worker; constructed and destroyed anywhere.
class Cell {
 public:
  // `random_stream`: which random numbers are its own, beside those of other
  // micro-batches on the same partition.
  Cell(Partition& partition, int64_t random_stream, bool checkpointed)
      : partition_(&partition),
        random_stream_(random_stream),
        checkpointed_(checkpointed) {}

  bool checkpointed() const { return checkpointed_; }

  // Before forward(). The head must live as long as the cell runs layers.
  void set_head(LossHead* head) { head_ = head; }

  // Before forward(): NonFiniteError as soon as a layer gives what is not
  // finite, or the loss is not.
  void check_finite(bool check) { check_finite_ = check; }

  // `leaf_input`: the boundary tensors are leaves of the user's.
  Parcel forward(Parcel input, StepSeed& seed, bool leaf_input);

  // Before each backward of a checkpointed cell. Gives the same values as the
  // forward: same random numbers, same buffers; buffers are left as they were.
  // c10::Error if something that the cell read has been changed since.
  void recompute(StepSeed& seed);

  // Gradients of what came in; those of leaves() go to `sink`, by their place
  // there, where `leaf_wanted` by number (empty: all are). `grads`: those of
  // what went out. `want_input`: whether anything further back is wanted.
  GradParcel backward(GradParcel grads, bool keep_graph, bool want_input,
                      const std::vector<bool>& leaf_wanted,
                      const LeafSink& sink);

  // backward() in two parts, see split_backward.h, of which the first makes the
  // gradients of what came in, and the second those of all leaves.
  GradParcel backward_input(GradParcel grads);
  void backward_weight(const LeafSink& sink);

  // Parameters, and whatever else layers captured, that the outputs depend on.
  const std::vector<at::Tensor>& leaves() const { return leaves_.tensors; }
  // Nodes of its graph that were there before, once; see Leaves::foreign.
  std::vector<NodePtr> take_foreign() {
    return std::exchange(leaves_.foreign, {});
  }
  // Their numbers in the partition's list, set by the step.
  std::vector<int64_t>& leaf_numbers() { return leaf_numbers_; }

  // Name of the layer at work, for messages; empty outside of layers.
  const std::string& layer_at_work() const { return layer_at_work_; }

  // Drops the graph and all tensors.
  void release();

 private:
  struct Saved {
    std::vector<Crossing> input;
    std::vector<int64_t> versions;       // of input
    std::vector<int64_t> leaf_versions;  // of leaves_
    // Parameters that want no gradient, and so are no leaves, and their
    // versions.
    std::vector<std::pair<at::Tensor, int64_t>> frozen;
    std::vector<bool> training;  // of the partition's modules
    std::vector<Outline> outputs;
    std::vector<BufferValue> buffers;  // as the layers found them
    std::vector<GivenDraw> draws;      // of the layers' own generators
  };

  // Runs the layers on `input`, fills entry_ and exits_, and returns what goes
  // out: boundary tensors, then exported skips.
  // `again`: it has been done once.
  std::vector<at::Tensor> run_layers(std::vector<Crossing> input,
                                     StepSeed& seed, bool again);
  Value run_head(Value output);
  void check_output(const Layer& layer, const Value& output,
                    const CellTracker& tracker) const;
  void check_unchanged() const;
  void check_unchanged(const at::Tensor& parameter, int64_t version) const;
  void find_ways_again();
  // Where gradients of what went out begin, with these.
  void take_roots(GradParcel grads, std::vector<torch::autograd::Edge>& roots,
                  std::vector<at::Tensor>& root_grads);
  GradParcel parcel_of(std::vector<at::Tensor> input_grads) const;

  Partition* partition_;
  int64_t random_stream_;
  bool checkpointed_;
  bool leaf_input_ = false;
  bool check_finite_ = false;
  LossHead* head_ = nullptr;

  Value::Kind input_kind_ = Value::Kind::kTensor;
  std::size_t input_width_ = 0;  // boundary tensors; imported skips follow
  Value::Kind output_kind_ = Value::Kind::kTensor;
  std::size_t output_width_ = 0;  // boundary tensors; exported skips follow

  // Where gradients of the input arrive.
  std::vector<torch::autograd::Edge> entry_;
  // Where gradients of the outputs begin. The outputs themselves belong to
  // whoever gets them: an operator that needs one in its backward holds it.
  std::vector<torch::autograd::Edge> exits_;
  // If no gradient of the input is wanted: of the first layer's outputs that
  // have one. Divides backward_input() from backward_weight() then.
  std::vector<torch::autograd::Edge> inner_;
  std::optional<SplitBackward> split_;
  Leaves leaves_;
  std::vector<int64_t> leaf_numbers_;
  Saved saved_;
  std::string layer_at_work_;
};

}  // namespace gpipe
