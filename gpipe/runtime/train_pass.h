// All actions of a schedule, on the cells of a step whose last stage ends in a
// loss.
#pragma once

#include <vector>

#include "gpipe/runtime/backward_pass.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/forward_pass.h"
#include "gpipe/runtime/step.h"

namespace gpipe {

class TrainPass : public Actor {
 public:
  // `weights`: of the losses, by micro-batch. `inputs`, `leaf_input`: see
  // ForwardPass.
  TrainPass(Stages& stages, Step& step, std::vector<Parcel> inputs,
            bool leaf_input, std::vector<double> weights,
            BackwardPass::Options options);

  bool ready(const Action& action) override;
  // c10::Error at the backward of a loss without graph.
  void perform(const Action& action) override;
  Failure place(const Action& action) override;

  // By micro-batch.
  at::Tensor loss(int64_t microbatch) {
    return forward_.outputs()[microbatch].boundary[0].tensor;
  }
  BackwardPass& backward() { return backward_; }

 private:
  Actor& half_of(const Action& action);
  void begin_backward(int64_t microbatch);

  const int64_t last_stage_;
  const std::vector<double> weights_;
  ForwardPass forward_;
  BackwardPass backward_;
};

}  // namespace gpipe
