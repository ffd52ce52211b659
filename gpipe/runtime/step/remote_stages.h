// The interface between the stages of this process and remote stages (stages in
// other processes).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/runtime/device/stream.h"

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

  // Throws if nothing more will arrive from remote stages. Threads: any, also
  // while something arrives.
  virtual void check() = 0;
};

}  // namespace gpipe::internal
