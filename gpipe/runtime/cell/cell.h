// Cell (i, j): micro-batch i on partition j, forward and backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/cell/kept_tensors.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/operators/random.h"
#include "gpipe/runtime/recompute/buffers.h"
#include "gpipe/runtime/recompute/past_call.h"
#include "gpipe/skip/skippable.h"

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

// Returns whether two tensors are the same view of the same memory.
bool is_same_view(const at::Tensor& a, const at::Tensor& b);

// The input tensors of a cell that others share, to be checked after its layers
// have run.
class SharedInput {
 public:
  explicit SharedInput(const std::vector<Activation>& input);
  // Throws c10::Error, with the partition's number, if a tensor that shares
  // memory (Activation::shared) was changed in place.
  void check_unchanged(int64_t partition) const;
  // Marks the tensors of `outputs` that share memory with one of these. Sets
  // Activation::unsplit of the outputs that a layer has passed on unchanged:
  // same memory, sizes, strides and dtype as an input that all micro-batches
  // share. Call after check_unchanged().
  void mark(std::vector<Activation>& outputs) const;

 private:
  // A tensor that shares memory. It is not kept alive.
  struct Tensor {
    WatchedVersion version;
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    bool is_unsplit;
  };
  std::vector<Tensor> tensors_;
  std::vector<Activation> unsplit_;
};

// Holds the skip tensors that earlier partitions sent, those that stay in the
// partition, and those that go to later partitions. A tensor that was popped is
// held no longer.
class CellTracker : public SkipTracker {
 public:
  // `imported`: one per element of partition.imports; nullopt for "no tensor".
  CellTracker(const Partition& partition,
              std::vector<std::optional<at::Tensor>> imported);

  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
  std::optional<at::Tensor> load(const SkipKey& key) override;

  // Returns the tensor that is stored under `key`; null if there is none, if
  // "no tensor" was stashed, or if it was popped.
  const at::Tensor* find(const SkipKey& key) const;

  // Checks the layer that has just run. Call after each layer. Throws
  // c10::Error if the layer has not stashed or popped all names that it
  // declares.
  void check_done(const LayerSkips& declared);

  // Moves out the skip tensors for later partitions, in the order of
  // partition.exports.
  std::vector<std::optional<at::Tensor>> take_exported();

 private:
  const Partition& partition_;
  std::map<SkipKey, std::optional<at::Tensor>> held_;
  std::set<SkipKey> stashed_, popped_;  // by the layer that runs now
};

// The loss of one micro-batch. The last stage's cell runs it after its last
// layer and outputs the loss.
struct LossHead {
  const LossFunction* function = nullptr;
  Value target;
  bool keep_output = false;

  // Set by the first run of the cell.
  Value output;       // without graph; set if keep_output
  at::Tensor weight;  // without graph; undefined if the loss is a mean
  Metrics metrics;    // without graph
};

// What goes from cell to cell, activations in the forward and their gradients
// in the backward: the tensors between two layers (`boundary`), and skip
// tensors in the order of the partition's imports or exports. Of a gradient
// only the tensor counts; undefined: no gradient.
struct Activations {
  Value::Kind kind = Value::Kind::kTensor;
  std::vector<Activation> boundary;
  std::vector<Activation> skips;
};

// A function from tensors to tensors with its own piece of autograd graph. The
// input tensors are detached from the graph of the cell that made them.
// Backward is one run of the engine from the outputs to the inputs and the
// leaves (parameters).
//
// The forward of a checkpointed cell also runs with gradients enabled. So it
// uses the same operators, gives the same bits, and shows which outputs require
// grad. Its graph is dropped at the end, and the cell keeps its inputs.
// recompute() builds the graph again.
//
// Threads: used by the partition's worker; constructed and destroyed on any
// thread.
class Cell {
 public:
  // `random_stream`: selects the random numbers of the cell; unique among the
  // micro-batches of the partition.
  Cell(Partition& partition, int64_t random_stream, bool checkpointed)
      : partition_(&partition),
        random_stream_(random_stream),
        checkpointed_(checkpointed) {}

  bool checkpointed() const { return checkpointed_; }

  // Sets the loss to run after the last layer. Call before forward(). `head`
  // must live as long as the cell runs layers.
  void set_head(LossHead* head) { head_ = head; }

  // Enables checks for NaN and infinity. forward() then throws NonFiniteError
  // if the pipeline's input, the output or a skip tensor of a layer, or the
  // loss is not finite. Call before forward().
  void check_finite(bool check) { check_finite_ = check; }

  // Makes offload() and reload() available. Call before forward(), for a
  // partition on a device with memory of its own. `leaves`: for each boundary
  // tensor and then each skip tensor that the cell outputs, whether it goes to
  // another device; boundary tensors share the first entry.
  void enable_offload(std::vector<bool> leaves) {
    offloads_ = true;
    output_leaves_ = std::move(leaves);
  }

  // Runs the layers and returns the outputs, without graph. `leaf_input`: the
  // boundary tensors are leaves of the user's graph.
  //
  // Throws whatever layers throw. Throws c10::Error if a layer changes a tensor
  // in place that others need (shared input, or the input of a checkpointed
  // cell), or if it uses a tensor whose graph reaches the input of another
  // cell, and c10::ValueError if the loss is not a floating-point tensor with
  // one element.
  Activations forward(Activations input, StepSeed& seed, bool leaf_input);

  // Runs the forward of a checkpointed cell again, before each backward. The
  // values are those of the forward: random numbers and buffers are the same.
  // Afterwards the buffers hold again what they held before the call, and the
  // graph keeps copies of those that it needs. Throws
  // c10::Error if the input, a parameter or the training mode has changed since
  // the forward, or if the outputs differ from the forward's (see PastCall).
  void recompute(StepSeed& seed);

  // Copies to the host what the graph of the last forward() or recompute()
  // keeps for the backward, and back; see KeptTensors. Do nothing unless
  // offload is enabled.
  void offload(Copier& copier, Copier::Times* times);
  void reload(Copier& copier, Copier::Times* times);

  // Runs the backward and returns the gradients of the inputs. `grads`:
  // gradients of the outputs. `want_input`: whether any gradient of the inputs
  // is wanted. Gradients of leaves go to `sink`, with the leaf's index in
  // leaves(), if `leaf_wanted` is true at the leaf's number in the partition
  // (empty: all are wanted).
  Activations backward(Activations grads, bool keep_graph, bool want_input,
                       const std::vector<bool>& leaf_wanted,
                       const LeafSink& sink);

  // Run the backward in two parts, see Subgraph. The first part returns the
  // gradients of the inputs. The second part passes the gradients of all leaves
  // to `sink`.
  Activations backward_input(Activations grads);
  void backward_weight(const LeafSink& sink) { graph_.backward_weight(sink); }

  // Returns the leaves that the outputs depend on: parameters, and other
  // tensors that layers have captured.
  const std::vector<at::Tensor>& leaves() const { return graph_.leaves(); }
  // A graph node that was made outside of the cell (see Subgraph::Foreign), and
  // the name of the layer that uses it; empty if not known.
  struct Captured {
    NodePtr node;
    std::string layer;
  };
  // Moves these out. Call after forward(), and before other layers run.
  std::vector<Captured> take_captured();
  // Returns the number of each of leaves() in the partition's list. Set by the
  // step.
  std::vector<int64_t>& leaf_numbers() { return leaf_numbers_; }

  // Returns the name of the layer that runs now, for messages; empty outside of
  // layers.
  const std::string& layer_at_work() const { return layer_at_work_; }
  std::string& layer_at_work() { return layer_at_work_; }

  // Drops the graph and all tensors.
  void release();

 private:
  // Runs the layers on `input`, sets `graph_`, and returns the outputs:
  // boundary tensors, then exported skips. `again`: this is a recompute. Then
  // leaves keep the numbers of the forward.
  std::vector<at::Tensor> run_layers(std::vector<Activation> input,
                                     StepSeed& seed, bool again);
  // Returns the tensors of the last layer's output, then exported skips.
  std::vector<at::Tensor> take_outputs(Value value, CellTracker& tracker);
  Value run_head(Value output);
  // Notes the storages of outputs that go to other devices.
  void note_leaving(const std::vector<at::Tensor>& outputs);
  void check_output(const Layer& layer, const Value& output,
                    const CellTracker& tracker) const;
  // Throws c10::Error if the graph reaches an input of another cell.
  void check_no_other_input();
  // Returns whether the next micro-batch or a recompute changes the memory of
  // an output, maybe before others have read it.
  bool is_changed_later(const at::Tensor& output) const;
  // Notes what the forward is about to see, for a recompute.
  void begin_checkpoint(const std::vector<Activation>& inputs);
  // Returns the name of the layer that made the node with this sequence number,
  // "loss", or "" if it is unknown.
  std::string layer_of(uint64_t node) const;
  // Returns the gradients of the outputs in the order of the outputs.
  std::vector<at::Tensor> gradients_in(Activations grads) const;
  // Splits gradients of the inputs into those of boundary and skip tensors.
  Activations gradients_of(std::vector<at::Tensor> input_grads) const;

  Partition* partition_;
  int64_t random_stream_;
  bool checkpointed_;
  bool leaf_input_ = false;
  bool check_finite_ = false;
  bool offloads_ = false;
  std::vector<bool> output_leaves_;  // see enable_offload()
  LossHead* head_ = nullptr;

  Value::Kind input_kind_ = Value::Kind::kTensor;
  std::size_t input_width_ = 0;  // boundary tensors; imported skips follow
  Value::Kind output_kind_ = Value::Kind::kTensor;
  std::size_t output_width_ = 0;  // boundary tensors; exported skips follow

  Subgraph graph_;
  // What the graph keeps: with offload, and in the graph of a recompute that
  // has changed buffers (see PastBuffers). Null otherwise.
  std::unique_ptr<KeptTensors> kept_;
  // With offload: the storages of outputs that are on their way to other
  // devices (only compared, not used).
  std::unordered_set<const c10::StorageImpl*> leaving_;
  // For each layer, the smallest sequence number that its graph nodes may have,
  // in the last run_layers().
  std::vector<uint64_t> layer_starts_;
  std::vector<int64_t> leaf_numbers_;
  // Of a checkpointed cell: the forward and its input.
  PastCall past_;
  std::vector<Activation> past_input_;
  std::string layer_at_work_;
};

}  // namespace gpipe::internal
