// The passes of a step: they perform the actions of a schedule on its cells.
// Outputs go to stages of this process, or to remote stages (stages in other
// processes).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/failure.h"
#include "gpipe/runtime/autograd/gradients.h"
#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/recompute/buffers.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/step/step.h"

namespace gpipe::internal {

// Identifies one delivery from one cell to another.
struct StageEdge {
  bool backward = false;     // true for gradients
  int64_t from = 0, to = 0;  // stages
  // Index in Stages::links of the skip tensor; -1 for the boundary tensors
  // between two neighbouring stages.
  int64_t link = -1;
  int64_t microbatch = 0;
};

// One output of an action, for one remote stage. For gradients only the tensors
// of `content` are set.
struct StageOutput {
  StageEdge edge;
  Value::Kind kind = Value::Kind::kTensor;
  std::vector<Activation> content;
};

// Sends activations and gradients to remote stages. What arrives from remote
// stages is passed to deliver() of the passes.
class RemoteStages {
 public:
  virtual ~RemoteStages() = default;

  // Sends everything that one action has made for remote stages, complete at
  // event `made`. Skip tensors come before what goes to the neighbouring stage.
  // Threads: the worker of the stage that made it; the call should not block.
  virtual void send(std::vector<StageOutput> all, const Event& made) = 0;

  // Returns whether complete() is to be called.
  virtual bool takes_gradients() const { return false; }
  // Offers the gradient of `leaf`, summed over all micro-batches and complete
  // at event `made`. Called while the stage's last backward still runs, where
  // possible; not called for a leaf that other stages of this process use too.
  // The function may move `grad` out, which leaves it undefined. Threads: the
  // stage's worker; on an accelerator the engine's thread, while the worker
  // waits.
  virtual void complete(int64_t /*stage*/, const at::Tensor& /*leaf*/,
                        at::Tensor& /*grad*/, const Event& /*made*/) {}
  // Reports that `stage` has offered all of its gradients.
  virtual void complete(int64_t /*stage*/) {}

  // Reports that the worker waits for an output of `stage`; -1: it does not
  // wait. A `stage` without a rank, or of this process, counts as -1. Threads:
  // the worker. Called often.
  virtual void waits_for(int64_t /*stage*/) {}

  // Throws if nothing more will arrive from remote stages, before each action:
  // also one that needs nothing more would be for nothing. Threads: any, also
  // while something arrives.
  virtual void check() = 0;
};

// Performs actions of a schedule on the cells of a step: forwards, recomputes,
// backwards, and copies to and from the host. forward(), its backward and
// train_step() each have a pass of their own.
class StepPass : public Actor {
 public:
  // How backwards run. A pass without backwards needs none.
  struct Options {
    // Whether any gradient of the pipeline's input is wanted.
    bool input_wanted = true;
    // Whether the gradient of a leaf is wanted, by partition and by the leaf's
    // number there. Empty: all are wanted.
    std::vector<std::vector<bool>> leaf_wanted;
    // Whether backward may run again on the same cells. Not for schedules with
    // backwards in two parts.
    bool keep_graph = false;
    SumOrder order = SumOrder::kAsTheyCome;
    // Whether to check gradients. The backward of a cell then throws
    // NonFiniteError if a gradient of its parameters, or one that leaves the
    // cell, is not finite.
    bool check_finite = false;
    // If the cells of the last stage end in a loss: the weight of each
    // micro-batch's loss, read when its backward begins. Then the last stage
    // begins its backward from its own forward. Else begin_backward() does.
    const std::vector<double>* loss_weights = nullptr;
  };

  // `remote`: handles remote stages (in other processes); null if there are
  // none.
  StepPass(Stages& stages, Step& step, Options options,
           RemoteStages* remote = nullptr);
  // Blocks the host while copies to the host run, which is the case only after
  // an error.
  ~StepPass() override;

  // Provides the inputs of the first stage by micro-batch. `leaf_input`: the
  // input is a leaf of the user's graph. Call before the pass is run, unless
  // the first stage is remote.
  void begin_forward(std::vector<Activations> inputs, bool leaf_input);
  // Provides the gradients of the last partition's outputs for one micro-batch.
  // Threads: any, before the backward of the micro-batch on that partition.
  void begin_backward(int64_t microbatch, std::vector<at::Tensor> grads);

  // Delivers activations or gradients, complete at event `ready`, to a stage of
  // this process. Threads: any; once for each edge.
  void deliver(const StageEdge& edge, Value::Kind kind,
               std::vector<Activation> content, const Event& ready);

  bool ready(const Action& action) override;
  void fetch(const Action& action, CopyLog* log) override;
  // Throws c10::Error at the backward of a loss without graph.
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // Returns the outputs of the last partition by micro-batch: the losses, if
  // its cells end in one.
  std::vector<Activations>& outputs() { return outputs_; }
  // Returns the gradients of the pipeline's input, by micro-batch and tensor.
  std::vector<std::vector<at::Tensor>>& input_grads() { return input_grads_; }
  // Moves out the gradient of each leaf, summed within every partition and then
  // over partitions, last partition first. Undefined for a leaf without
  // gradient.
  std::vector<at::Tensor> take_leaf_grads(
      const std::vector<SharedLeaf>& leaves);

 private:
  // The inputs of one cell in one direction. `missing` counts what has not
  // arrived: the boundary tensors are one delivery, and each skip tensor is
  // another.
  struct Inbox {
    std::atomic<std::size_t> missing{0};
    Activations content;
    Event boundary_ready;
    std::vector<Event> skip_ready;
  };
  using Inboxes = std::vector<std::deque<Inbox>>;  // by stage and micro-batch
  // The copies of Activation::unsplit, by stage and number. Used by the stage's
  // worker.
  struct UnsplitCopy {
    at::Tensor source, copy;
  };

  Inboxes make_inboxes(bool backward) const;
  Inbox& inbox_of(const Action& action);
  // Returns whether all inputs of the action have arrived. If not, throws if
  // they can never arrive from remote stages.
  bool arrived(const Action& action);
  // Brings these inputs to the stage's device. A tensor that all micro-batches
  // share is copied once.
  void bring(const Action& action, CopyLog* log);
  void bring(int64_t stage, Activation& input, const Event& ready,
             CopyLog* log);
  // Marks a tensor that leaves along a skip link if it is a parameter, the same
  // in all micro-batches. Copies a parameter that the layers have changed.
  void mark_parameter(std::size_t link, Activation& skip);
  // Passes what the action has made to the stages that need it. Returns the
  // boundary tensors of the last stage in this direction, and nothing for other
  // stages.
  Activations pass_on(const Action& action, Activations output);

  Phase phase_of(const Action& action) const;
  // Returns whether the action begins a backward at the loss.
  bool begins_at_loss(const Action& action) const;
  void begin_at_loss(int64_t microbatch);
  // Begins the copy of an O or L. On the CPU there is nothing to copy.
  void copy_kept(const Action& action, CopyLog* log);

  void forward(const Action& action);
  void recompute(const Action& action);
  // Runs the backward that `action` asks for, and passes the gradients on.
  void backward(const Action& action);
  // Runs the backward of the action's cell, and returns the gradients of its
  // inputs. Throws whatever the nodes of the graph throw, and c10::Error if the
  // graph of a tensor that layers have captured was already freed.
  Activations run_cell(const Action& action, const LeafSink& sink);
  // Adds the gradients that leave a cell of partition `j` to `non_finite`.
  void watch(int64_t j, const Activations& back,
             NonFiniteGradients& non_finite) const;
  // Offers the gradient sum of one leaf of partition `j` to `remote_`.
  void complete(int64_t j, int64_t leaf);
  // Offers the sums of all leaves of partition `j`, and then reports its end.
  void complete(int64_t j);

  Stages& stages_;
  Step& step_;
  const Options options_;
  RemoteStages* const remote_;
  const bool offers_gradients_;
  bool leaf_input_ = false;
  // first partition whose gradients are wanted; earlier ones are skipped
  int64_t first_wanted_ = 0;
  Inboxes forward_, backward_;
  std::vector<std::map<int, UnsplitCopy>> unsplit_copies_;
  // The parameter that goes along a skip link. Used by the worker of the stage
  // that makes the skip tensor.
  struct LinkParameter {
    // Undefined if another tensor does, nullopt before the first micro-batch.
    std::optional<at::Tensor> tensor;
    WatchedVersion version;  // at the beginning of the step
  };
  std::vector<LinkParameter> link_parameters_;  // by link
  // The versions of the parameters at the beginning of the step, by stage;
  // empty if no skip link leaves it.
  std::vector<std::vector<WatchedVersion>> versions_;
  std::vector<Activations> outputs_;
  std::vector<GradSum> sums_;  // by partition
  std::vector<std::vector<at::Tensor>> input_grads_;
};

}  // namespace gpipe::internal
