// Performs the forwards of a schedule on the cells of a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/device/copy_log.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/step/remote_stages.h"
#include "gpipe/runtime/step/step.h"

namespace gpipe::internal {

// The actor for the forwards of one step.
class ForwardPass : public Actor {
 public:
  // `inputs`: by micro-batch; empty if the first stage is remote. `leaf_input`:
  // the input is a leaf of the user's graph. `remote`: handles remote stages
  // (in other processes); null if there are none.
  ForwardPass(Stages& stages, Step& step, std::vector<Activations> inputs,
              bool leaf_input, RemoteStages* remote = nullptr);

  // Delivers activations, complete at event `ready`, to a stage of this
  // process. Threads: any; once for each edge.
  void deliver(const StageEdge& edge, Value::Kind kind,
               std::vector<Activation> content, const Event& ready);

  bool ready(const Action& action) override;
  void fetch(const Action& action, CopyLog* log) override;
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // Returns the outputs of the last partition, by micro-batch.
  std::vector<Activations>& outputs() { return outputs_; }

 private:
  // The activations for one cell. `missing` counts what has not arrived: the
  // boundary tensors are one delivery, and each skip tensor is another.
  struct Inbox {
    std::atomic<std::size_t> missing{0};
    Activations activations;
    Event boundary_ready;
    std::vector<Event> skip_ready;
  };

  // Brings an input of stage `j` to its device. A tensor that all micro-batches
  // share is copied once.
  void bring(int64_t j, Activation& activation, const Event& ready,
             CopyLog* log);
  // Delivers to a stage of this process, or appends to `leaving` for a remote
  // one.
  void pass_on(const StageEdge& edge, Value::Kind kind,
               std::vector<Activation> content, const Event& made,
               std::vector<StageOutput>& leaving);

  Stages& stages_;
  Step& step_;
  const bool leaf_input_;
  RemoteStages* const remote_;
  std::vector<std::deque<Inbox>> inboxes_;
  // The copies of unsplit elements, by stage and element. Used by the stage's
  // worker.
  struct UnsplitCopy {
    at::Tensor source, copy;
  };
  std::vector<std::map<int, UnsplitCopy>> unsplit_copies_;
  std::vector<Activations> outputs_;
};

}  // namespace gpipe::internal
