// The operators of BatchNorm within a NormScope.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <utility>
#include <vector>

#include "gpipe/runtime/operators/norm_statistics.h"

namespace gpipe::internal {
namespace {

thread_local NormScope* current_scope = nullptr;
thread_local int unread = 0;

// The operators that at::batch_norm() calls in the end. All take (input,
// weight, bias, running_mean, running_var, training, momentum, epsilon) and
// return (output, mean, 1 / sqrt(variance + epsilon), ...).
constexpr const char* kOperators[] = {
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
};

// Returns whether an optional tensor is one. It may also be undefined.
bool has_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

// The interceptor of these operators. Within a NormScope it calls the operator
// without running statistics and records those of the input.
void observe(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
             torch::jit::Stack* stack) {
  constexpr std::size_t kInput = 0, kMean = 3, kVar = 4, kTraining = 5,
                        kEpsilon = 7, kArguments = 8;
  const auto argument = [&](std::size_t k) -> c10::IValue& {
    return torch::jit::peek(*stack, k, kArguments);
  };
  NormScope* const scope = NormScope::current();
  NormScope::NormCall call;
  std::optional<UnreadStatistics> unread_statistics;
  if (scope && argument(kTraining).toBool()) {
    unread_statistics.emplace();
    if (has_tensor(argument(kMean)) && has_tensor(argument(kVar))) {
      call =
          scope->begin(argument(kMean).toTensor(), argument(kVar).toTensor());
    }
  }
  if (call.how == NormScope::How::kOnCopies) {
    argument(kMean) = argument(kMean).toTensor().clone();
    argument(kVar) = argument(kVar).toTensor().clone();
  }
  if (call.how != NormScope::How::kWithoutStatistics) {
    return run_intercepted(Interceptor::kCell, op, keys, stack);
  }

  const at::Tensor input = argument(kInput).toTensor();
  const double epsilon = argument(kEpsilon).toDouble();
  argument(kMean) = c10::IValue();
  argument(kVar) = c10::IValue();
  run_intercepted(Interceptor::kCell, op, keys, stack);
  const std::size_t results = op.schema().returns().size();
  scope->end(call.layer, input, torch::jit::peek(*stack, 1, results).toTensor(),
             torch::jit::peek(*stack, 2, results).toTensor(), epsilon);
}

// The interceptor of add_(number), by which modules count their calls.
void observe_counter(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  constexpr std::size_t kSelf = 0, kArguments = 3;
  if (NormScope* const scope = NormScope::current()) {
    const at::Tensor& self =
        torch::jit::peek(*stack, kSelf, kArguments).toTensor();
    // Module::to(dtype) makes num_batches_tracked a floating-point number.
    if (self.dim() == 0 && !self.requires_grad()) scope->count(self);
  }
  run_intercepted(Interceptor::kCell, op, keys, stack);
}

[[maybe_unused]] const bool intercepted = [] {
  intercept(
      Interceptor::kCell,
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::add_", "Scalar"),
      c10::KernelFunction::makeFromBoxedFunction<&observe_counter>(),
      "gpipe: counters of a recomputed function");
  for (const char* name : kOperators) {
    if (const auto op = c10::Dispatcher::singleton().findSchema({name, ""})) {
      intercept(Interceptor::kCell, *op,
                c10::KernelFunction::makeFromBoxedFunction<&observe>(),
                "gpipe: deferred BatchNorm");
    }
  }
  return true;
}();

}  // namespace

UnreadStatistics::UnreadStatistics() { ++unread; }
UnreadStatistics::~UnreadStatistics() { --unread; }
bool UnreadStatistics::in_scope() { return unread > 0; }

NormScope::NormScope(NormStatistics* statistics, bool record,
                     std::vector<at::Tensor>* changed)
    : statistics_(statistics),
      record_(record),
      changed_(changed),
      outer_(std::exchange(current_scope, this)) {}

NormScope::NormScope(CallNorms& call, bool again)
    : record_(!again),
      call_(&call),
      outer_(std::exchange(current_scope, this)) {}

NormScope::~NormScope() { current_scope = outer_; }

void NormScope::count(const at::Tensor& counter) {
  if (outer_ && record_) outer_->count(counter);
  if (!call_ || !record_) return;
  for (const CallNorms::Counter& each : call_->counters) {
    if (each.tensor.is_same(counter)) return;
  }
  call_->counters.push_back({counter, counter.detach().clone()});
}

NormScope* NormScope::current() { return current_scope; }

NormScope::NormCall NormScope::begin(const at::Tensor& running_mean,
                                     const at::Tensor& running_var) {
  if (call_ && record_) {
    const NormCall call =
        outer_ ? outer_->begin(running_mean, running_var) : NormCall();
    call_->deferred.push_back(call.how == How::kWithoutStatistics);
    if (call.how == How::kAsGiven) {
      call_->statistics.insert(call_->statistics.end(),
                               {running_mean, running_var});
    }
    return call;
  }
  if (call_) {
    const bool deferred =
        next_ < call_->deferred.size() && call_->deferred[next_];
    ++next_;
    if (deferred) return {How::kWithoutStatistics};
    return {call_->restores_statistics ? How::kAsGiven : How::kOnCopies};
  }
  for (std::size_t k = 0; statistics_ && k < statistics_->layers_.size(); ++k) {
    auto& layer = statistics_->layers_[k];
    if (!layer.running_mean().is_same(running_mean)) continue;
    if (record_) ++layer.calls;
    return {How::kWithoutStatistics, k};
  }
  if (changed_) changed_->insert(changed_->end(), {running_mean, running_var});
  return {};
}

void NormScope::end(std::size_t layer, const at::Tensor& input,
                    const at::Tensor& mean, const at::Tensor& inverse_deviation,
                    double epsilon) {
  if (!record_) return;
  if (call_) return outer_->end(layer, input, mean, inverse_deviation, epsilon);
  statistics_->layers_[layer].seen.push_back(
      {mean.detach(), inverse_deviation.detach(), epsilon,
       input.numel() / input.size(1)});
}

}  // namespace gpipe::internal
