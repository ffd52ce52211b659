// Between the stages of this process and those of others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/stream.h"
#include "gpipe/runtime/value.h"

namespace gpipe {

// What goes from one cell to another.
struct Passage {
  bool backward = false;     // gradients
  int64_t from = 0, to = 0;  // stages
  // Of a skip tensor in Stages::links; -1: the value between the two stages.
  int64_t link = -1;
  int64_t microbatch = 0;
};

// What an action has made for a stage; of gradients only the tensors count.
struct Outgoing {
  Passage passage;
  Value::Kind kind = Value::Kind::kTensor;
  std::vector<Crossing> content;
};

// Takes what is made here for stages that are elsewhere. What comes from there
// is given to deliver() of the passes.
class Border {
 public:
  virtual ~Border() = default;

  // All that an action has made for stages elsewhere, skip tensors before what
  // goes to the neighbour, complete at `made`. Threads: the worker of the stage
  // that made it, which should not have to wait.
  virtual void send(std::vector<Outgoing> all, const Moment& made) = 0;

  // Whether gradients of leaves are for complete().
  virtual bool takes_gradients() const { return false; }
  // The gradient of `leaf`, of all micro-batches, complete at `made`: while the
  // stage's last backward goes on, if it may; not of a leaf that other stages
  // here use too. May be taken, which leaves an undefined one. Threads: the
  // stage's worker; on an accelerator the engine's, while that waits.
  virtual void complete(int64_t /*stage*/, const at::Tensor& /*leaf*/,
                        at::Tensor& /*grad*/, const Moment& /*made*/) {}
  // There are no more of this stage.
  virtual void complete(int64_t /*stage*/) {}

  // The worker can do nothing before `stage` has, of which it needs something;
  // -1: it can. Threads: the worker; often.
  virtual void waits_for(int64_t /*stage*/) {}

  // Throws once nothing more will come from elsewhere. Threads: any; also
  // called while something arrives.
  virtual void check() = 0;
};

}  // namespace gpipe
