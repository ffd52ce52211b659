#include "gpipe/runtime/pipeline/train_pass.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

namespace gpipe::internal {

TrainPass::TrainPass(Stages& stages, Step& step,
                     std::vector<Activations> inputs, bool leaf_input,
                     const std::vector<double>& weights,
                     BackwardPass::Options options, RemoteStages* remote)
    : last_stage_(stages.size() - 1),
      weights_(weights),
      forward_(stages, step, std::move(inputs), leaf_input, remote),
      backward_(stages, step, std::move(options), remote) {}

void TrainPass::deliver(const StageEdge& edge, Value::Kind kind,
                        std::vector<Activation> content, const Event& ready) {
  if (!edge.backward) {
    forward_.deliver(edge, kind, std::move(content), ready);
    return;
  }
  std::vector<at::Tensor> grads;
  for (Activation& each : content) grads.push_back(std::move(each.tensor));
  backward_.deliver(edge, std::move(grads), ready);
}

Actor& TrainPass::half_of(const Action& action) {
  if (action.kind == ActionKind::kForward) return forward_;
  return backward_;
}

bool TrainPass::ready(const Action& action) {
  // The last stage starts its backward from its own forward.
  const bool ends_and_begins =
      action.kind != ActionKind::kForward && action.stage == last_stage_;
  return ends_and_begins || half_of(action).ready(action);
}

bool TrainPass::begins_backward(const Action& action) const {
  return action.stage == last_stage_ && internal::begins_backward(action.kind);
}

void TrainPass::fetch(const Action& action, CopyLog* log) {
  // The gradient of the loss does not exist yet, and comes from no other
  // device.
  if (!begins_backward(action)) half_of(action).fetch(action, log);
}

void TrainPass::perform(const Action& action) {
  if (begins_backward(action)) {
    begin_backward(action.microbatch);
    half_of(action).fetch(action, nullptr);
  }
  half_of(action).perform(action);
}

void TrainPass::begin_backward(int64_t microbatch) {
  const Activation& loss = forward_.outputs()[microbatch].boundary[0];
  TORCH_CHECK(loss.requires_grad, "the loss of micro-batch ", microbatch,
              " does not require grad: it depends on no parameter or input "
              "that does. Use a forward-only schedule to run without backward");
  const c10::AutoGradMode no_graph(false);
  backward_.begin(microbatch,
                  {at::full_like(loss.tensor, weights_[microbatch])});
}

Failure TrainPass::place(const Action& action) {
  return half_of(action).place(action);
}

}  // namespace gpipe::internal
