// Performs the recomputes and backwards of a schedule on the cells of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "gpipe/runtime/autograd/grad_sum.h"
#include "gpipe/runtime/autograd/non_finite.h"
#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/device/copy_log.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/step/remote_stages.h"
#include "gpipe/runtime/step/step.h"

namespace gpipe::internal {

// The actor for the recomputes and backwards of one step, and for the copies to
// and from the host.
class BackwardPass : public Actor {
 public:
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
  };

  // `remote`: handles remote stages (in other processes); null if there are
  // none.
  BackwardPass(Stages& stages, Step& step, Options options,
               RemoteStages* remote = nullptr);
  // Blocks the host while copies to the host run, which is the case only after
  // an error.
  ~BackwardPass() override;

  // Provides the gradients of the last partition's outputs for one micro-batch.
  // Threads: any, before the backward of the micro-batch on that partition.
  void begin(int64_t microbatch, std::vector<at::Tensor> grads);

  // Delivers gradients to a stage of this process; see ForwardPass::deliver().
  void deliver(const StageEdge& edge, std::vector<at::Tensor> grads,
               const Event& ready);

  bool ready(const Action& action) override;
  void fetch(const Action& action, CopyLog* log) override;
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // Returns the gradients of the pipeline's input, by micro-batch and tensor.
  std::vector<std::vector<at::Tensor>>& input_grads() { return input_grads_; }
  // Moves out the gradient of each leaf, summed within every partition and then
  // over partitions, last partition first. Undefined for a leaf without
  // gradient.
  std::vector<at::Tensor> take_leaf_grads(
      const std::vector<SharedLeaf>& leaves);

  // Returns a name for a leaf of partition `j`, for messages: "parameter
  // '3.weight'" or "a tensor that a layer has captured".
  std::string describe_leaf(int64_t j, const at::Tensor& leaf) const;

 private:
  // The gradients for one cell. `missing` counts what has not arrived: the
  // boundary gradients are one delivery, and each skip tensor is another.
  struct Inbox {
    std::atomic<std::size_t> missing{0};
    Gradients grads;
    Event boundary_ready;
    std::vector<Event> skip_ready;
  };

  // Begins the copy of an O or L. On the CPU there is nothing to copy.
  void copy_kept(const Action& action, CopyLog* log);
  // Runs the backward of cell (i, j) that `action` asks for, and returns the
  // gradients of its inputs. Throws whatever the nodes of the graph throw, and
  // c10::Error if the graph of a tensor that layers have captured was already
  // freed.
  Gradients run_cell(const Action& action, const LeafSink& sink);
  // Adds the gradients that leave cell (i, j) to `non_finite`.
  void watch(int64_t j, const Gradients& back,
             NonFiniteGradients& non_finite) const;
  // Passes the gradients that leave cell (i, j) to the stages that need them.
  void pass_back(int64_t j, int64_t i, Gradients back);
  // Offers the gradient sum of one leaf of partition `j` to `remote_`.
  void complete(int64_t j, int64_t leaf);
  // Offers the sums of all leaves of partition `j`, and then reports its end.
  void complete(int64_t j);
  // Delivers to a stage of this process, or appends to `leaving` for a remote
  // one.
  void pass_on(const StageEdge& edge, std::vector<at::Tensor> grads,
               const Event& made, std::vector<StageOutput>& leaving);

  Stages& stages_;
  Step& step_;
  const Options options_;
  RemoteStages* const remote_;
  const bool offers_gradients_;
  // first partition whose gradients are wanted; earlier ones are skipped
  int64_t first_wanted_ = 0;
  std::vector<std::deque<Inbox>> inboxes_;
  std::vector<GradSum> sums_;  // by partition
  std::vector<std::vector<at::Tensor>> input_grads_;
};

}  // namespace gpipe::internal
