// Performs all actions of a schedule on the cells of a step whose last stage
// ends in a loss.
#pragma once

#include <vector>

#include "gpipe/runtime/device/copy_log.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/step/backward_pass.h"
#include "gpipe/runtime/step/forward_pass.h"
#include "gpipe/runtime/step/step.h"

namespace gpipe::internal {

// The actor for a training step: a ForwardPass and a BackwardPass.
class TrainPass : public Actor {
 public:
  // `weights`: weight of each micro-batch's loss, read when its backward
  // begins. `inputs`, `leaf_input`, `remote`: see ForwardPass.
  TrainPass(Stages& stages, Step& step, std::vector<Activations> inputs,
            bool leaf_input, const std::vector<double>& weights,
            BackwardPass::Options options, RemoteStages* remote = nullptr);

  // Delivers activations or gradients; see ForwardPass::deliver().
  // Threads: any.
  void deliver(const StageEdge& edge, Value::Kind kind,
               std::vector<Activation> content, const Event& ready);

  bool ready(const Action& action) override;
  void fetch(const Action& action, CopyLog* log) override;
  // Performs the action. Throws c10::Error at the backward of a loss without
  // graph.
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // Returns the outputs of the last stage by micro-batch: the losses, if its
  // cells end in one.
  std::vector<Activations>& outputs() { return forward_.outputs(); }
  BackwardPass& backward() { return backward_; }

 private:
  Actor& half_of(const Action& action);
  bool begins_backward(const Action& action) const;
  void begin_backward(int64_t microbatch);

  const int64_t last_stage_;
  const std::vector<double>& weights_;
  ForwardPass forward_;
  BackwardPass backward_;
};

}  // namespace gpipe::internal
