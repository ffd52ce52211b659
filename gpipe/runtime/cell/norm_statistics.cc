#include "gpipe/runtime/cell/norm_statistics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <set>
#include <utility>

#include "gpipe/runtime/cell/buffer_copies.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {
namespace {

thread_local NormScope* current_scope = nullptr;

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
  // The backward of a call in training does not read the running statistics,
  // which the operator saves all the same.
  std::optional<PastBuffers::Unread> unread;
  if (scope && argument(kTraining).toBool()) {
    unread.emplace();
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

NormStatistics::NormStatistics(
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  std::set<const torch::nn::Module*> known;
  const auto add = [&](const auto& norm) {
    if (!norm || !norm->options.track_running_stats()) return;
    layers_.push_back({[norm] { return norm->running_mean; },
                       [norm] { return norm->running_var; },
                       [norm] { return norm->num_batches_tracked; },
                       [norm] { return norm->options.momentum(); },
                       /*calls=*/0,
                       {}});
  };
  for (const auto& root : modules) {
    for (const auto& module : root->modules()) {
      if (!known.insert(module.get()).second) continue;
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(module));
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(module));
      add(std::dynamic_pointer_cast<torch::nn::BatchNorm3dImpl>(module));
    }
  }
}

void NormStatistics::make(const std::vector<Update>& updates) {
  c10::NoGradGuard no_grad;
  try {
    for (const Update& each : updates) {
      at::Tensor buffer = each.buffer;
      buffer.copy_(each.value);
    }
  } catch (...) {
    undo(updates);
    throw;
  }
}

void NormStatistics::undo(const std::vector<Update>& updates) {
  c10::NoGradGuard no_grad;
  for (const Update& each : updates) {
    at::Tensor buffer = each.buffer;
    try {
      buffer.copy_(each.before);
    } catch (...) {
      // The device has failed. A later buffer may still be on a working device.
    }
  }
}

std::vector<NormStatistics::Update> NormStatistics::updates() const {
  c10::NoGradGuard no_grad;
  std::vector<Update> updates;
  for (const Layer& layer : layers_) {
    if (layer.seen.empty()) continue;
    int64_t count = 0;
    at::Tensor mean, squares;  // sum of squared deviations from the mean
    for (const Seen& each : layer.seen) {
      record_stream(each.mean, each.mean.device());
      record_stream(each.inverse_deviation, each.inverse_deviation.device());
      const auto n = static_cast<double>(each.count);
      const at::Tensor m = each.mean.to(at::kDouble);
      const at::Tensor s =
          each.inverse_deviation.to(at::kDouble).pow(-2).sub(each.epsilon) * n;
      if (count == 0) {
        mean = m;
        squares = s;
      } else {
        // Combines a part with the whole: Chan, Golub, LeVeque (1983).
        const auto before = static_cast<double>(count);
        const at::Tensor step = m - mean;
        squares = squares + s + step.square() * (before * n / (before + n));
        mean = mean + step * (n / (before + n));
      }
      count += each.count;
    }
    const auto unbiased = static_cast<double>(count > 1 ? count - 1 : 1);
    const at::Tensor variance = squares.clamp_min(0) / unbiased;

    at::Tensor batches = layer.batches();
    if (batches.defined()) {
      updates.push_back(
          {batches, batches.sub(layer.calls - 1), batches.sub(layer.calls)});
      batches = updates.back().value;
    }
    const auto momentum = layer.momentum();
    const auto update = [&](const at::Tensor& running,
                            const at::Tensor& value) {
      // Exact in double, and a copy even if the buffer is double.
      const at::Tensor old =
          running.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
      updates.push_back({running,
                         momentum ? old * (1 - *momentum) + value * *momentum
                                  : old + (value - old) / batches,
                         old});
    };
    update(layer.running_mean(), mean);
    update(layer.running_var(), variance);
  }
  return updates;
}

void NormStatistics::forget() noexcept {
  for (Layer& layer : layers_) {
    layer.seen.clear();
    layer.calls = 0;
  }
}

void NormStatistics::commit() {
  const std::vector<Update> all = updates();
  forget();
  make(all);
}

void NormStatistics::discard() {
  c10::NoGradGuard no_grad;
  for (Layer& layer : layers_) {
    layer.seen.clear();
    at::Tensor batches = layer.batches();
    if (layer.calls > 0 && batches.defined()) batches.sub_(layer.calls);
    layer.calls = 0;
  }
}

NormScope::NormScope(NormStatistics* statistics, bool record,
                     std::vector<at::Tensor>* changed)
    : statistics_(statistics),
      record_(record),
      changed_(changed),
      outer_(std::exchange(current_scope, this)) {}

NormScope::NormScope(CallNorms& call, bool again)
    : record_(!again), call_(&call), outer_(current_scope) {
  if (again) {
    BufferCopies past;
    for (const CallNorms::Counter& each : call.counters) {
      past.add(each.tensor, each.before);
    }
    counters_.emplace(past);
  }
  current_scope = this;  // last, as the rest may throw
}

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
