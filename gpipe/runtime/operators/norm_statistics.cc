#include "gpipe/runtime/operators/norm_statistics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <set>
#include <utility>

#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {
namespace {

using Numbers = std::vector<at::Scalar>;

// Returns a copy of the tensors, one after the other in a vector.
at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& each : tensors) flat.push_back(each.view(-1));
  return at::cat(flat);
}

// Returns views of the vector with the sizes of `tensors`.
std::vector<at::Tensor> pieces_of(const at::Tensor& vector,
                                  const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> pieces;
  pieces.reserve(tensors.size());
  int64_t begin = 0;
  for (const at::Tensor& each : tensors) {
    pieces.push_back(vector.narrow(0, begin, each.numel()).view(each.sizes()));
    begin += each.numel();
  }
  return pieces;
}

}  // namespace

NormStatistics::NormStatistics(
    std::vector<std::shared_ptr<torch::nn::Module>> modules)
    : modules_(std::move(modules)) {
  find_layers();
}

void NormStatistics::find_layers() {
  const auto called = [](const Layer& each) { return each.raised() > 0; };
  if (std::ranges::any_of(layers_, called)) return;
  layers_.clear();
  std::set<const torch::nn::Module*> known;
  const auto add = [&](const auto& norm) {
    if (!norm || !norm->options.track_running_stats()) return;
    layers_.push_back({[norm] { return norm->running_mean; },
                       [norm] { return norm->running_var; },
                       [norm] { return norm->num_batches_tracked; },
                       [norm] { return norm->options.momentum(); },
                       /*calls=*/0,
                       /*counted=*/0,
                       {}});
  };
  for (const auto& root : modules_) {
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
      at::_foreach_copy_(each.buffers, each.values);
    }
  } catch (...) {
    undo(updates);
    throw;
  }
}

void NormStatistics::undo(const std::vector<Update>& updates) {
  c10::NoGradGuard no_grad;
  for (const Update& each : updates) {
    try {
      at::_foreach_copy_(each.buffers, each.before);
    } catch (...) {
      // The device has failed. Other buffers may be on a working device.
    }
  }
}

std::vector<NormStatistics::Layers> NormStatistics::called_groups() const {
  const auto type_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined;
  };
  const auto alike = [&](const Layer& a, const Layer& b) {
    return a.running_mean().device() == b.running_mean().device() &&
           type_of(a.running_mean()) == type_of(b.running_mean()) &&
           type_of(a.running_var()) == type_of(b.running_var()) &&
           type_of(a.batches()) == type_of(b.batches()) &&
           a.momentum().has_value() == b.momentum().has_value();
  };
  std::vector<Layers> groups;
  for (const Layer& layer : layers_) {
    if (layer.raised() == 0) continue;
    auto group = std::ranges::find_if(groups, [&](const Layers& each) {
      return alike(*each.front(), layer);
    });
    if (group == groups.end()) group = groups.emplace(group);
    group->push_back(&layer);
  }
  for (Layers& each : groups) {
    std::ranges::stable_sort(
        each, [](auto* a, auto* b) { return a->seen.size() > b->seen.size(); });
  }
  return groups;
}

// Call k of all layers that have one is a piece of the vectors, and call k of
// the first layers is a prefix of call 0, as layers with more calls come first.
at::Tensor NormStatistics::variances(const Layers& layers, at::Tensor* means) {
  std::vector<at::Tensor> mean_of_call, inverse_of_call;
  Numbers epsilon, count;
  std::vector<int64_t> lengths;  // of the pieces, by call
  for (std::size_t k = 0; k < layers.front()->seen.size(); ++k) {
    lengths.push_back(0);
    for (const Layer* layer : layers) {
      if (layer->seen.size() <= k) break;
      const Seen& each = layer->seen[k];
      record_stream(each.mean, each.mean.device());
      record_stream(each.inverse_deviation, each.inverse_deviation.device());
      mean_of_call.push_back(each.mean);
      inverse_of_call.push_back(each.inverse_deviation);
      epsilon.push_back(each.epsilon);
      count.push_back(static_cast<double>(each.count));
      lengths.back() += each.mean.numel();
    }
  }
  const at::Tensor m = at::cat(mean_of_call).to(at::kDouble);
  const at::Tensor s = at::cat(inverse_of_call).to(at::kDouble).pow(-2);
  const std::vector<at::Tensor> pieces = pieces_of(s, inverse_of_call);
  at::_foreach_sub_(pieces, epsilon);
  at::_foreach_mul_(pieces, count);

  at::Tensor mean = m.narrow(0, 0, lengths[0]);
  at::Tensor squares = s.narrow(0, 0, lengths[0]);  // of deviations, their sum
  std::vector<int64_t> counts;                      // by layer, so far
  for (const Layer* each : layers) counts.push_back(each->seen[0].count);
  int64_t begin = lengths[0];
  for (std::size_t k = 1; k < lengths.size(); ++k) {
    // Combines a part with the whole: Chan, Golub, LeVeque (1983).
    Numbers of_square, of_step;
    std::vector<at::Tensor> parts;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (layers[l]->seen.size() <= k) break;
      const auto n = static_cast<double>(layers[l]->seen[k].count);
      const auto before = static_cast<double>(counts[l]);
      of_square.push_back(before * n / (before + n));
      of_step.push_back(n / (before + n));
      parts.push_back(layers[l]->seen[k].mean);
      counts[l] += layers[l]->seen[k].count;
    }
    at::Tensor whole = mean.narrow(0, 0, lengths[k]);
    at::Tensor sum = squares.narrow(0, 0, lengths[k]);
    const at::Tensor step = m.narrow(0, begin, lengths[k]) - whole;
    const at::Tensor square = step.square();
    at::_foreach_mul_(pieces_of(square, parts), of_square);
    sum.add_(s.narrow(0, begin, lengths[k])).add_(square);
    at::_foreach_mul_(pieces_of(step, parts), of_step);
    whole.add_(step);
    begin += lengths[k];
  }
  Numbers unbiased;
  for (const int64_t each : counts) {
    unbiased.push_back(static_cast<double>(each > 1 ? each - 1 : 1));
  }
  std::vector<at::Tensor> of_layers(mean_of_call.begin(),
                                    mean_of_call.begin() + layers.size());
  squares.clamp_min_(0);
  at::_foreach_div_(pieces_of(squares, of_layers), unbiased);
  *means = mean;
  return squares;
}

NormStatistics::Update NormStatistics::count_update(const Layers& layers) {
  Update update;
  Numbers before, not_counted;
  for (const Layer* each : layers) {
    if (!each->batches().defined()) return {};
    update.buffers.push_back(each->batches());
    before.push_back(each->raised());
    not_counted.push_back(each->raised() - 1);
  }
  update.before = pieces_of(joined(update.buffers), update.buffers);
  update.values = pieces_of(joined(update.buffers), update.buffers);
  at::_foreach_sub_(update.before, before);
  at::_foreach_sub_(update.values, not_counted);
  return update;
}

std::vector<NormStatistics::Update> NormStatistics::updates() const {
  c10::NoGradGuard no_grad;
  std::vector<Update> updates;
  for (Layers& layers : called_groups()) {
    const Update batches = count_update(layers);
    if (!batches.buffers.empty()) updates.push_back(batches);
    // LibTorch counts inputs without rows, which have no statistics. Their
    // layers come last.
    std::erase_if(layers, [](const Layer* each) { return each->seen.empty(); });
    if (layers.empty()) continue;
    const bool averages = !layers.front()->momentum();
    Update means, variances;
    Numbers kept, added;
    std::vector<at::Tensor> divisors;  // by channel
    for (std::size_t l = 0; l < layers.size(); ++l) {
      means.buffers.push_back(layers[l]->running_mean());
      variances.buffers.push_back(layers[l]->running_var());
      if (averages) {
        divisors.push_back(
            batches.values[l].expand(means.buffers.back().sizes()));
      } else {
        kept.push_back(1 - *layers[l]->momentum());
        added.push_back(*layers[l]->momentum());
      }
    }
    const auto update = [&](Update& each, const at::Tensor& value) {
      const at::Tensor before = joined(each.buffers);
      // Exact in double, and a copy even if the buffer is double.
      const at::Tensor running =
          before.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
      if (averages) {
        value.sub_(running).div_(at::cat(divisors));
      } else {
        at::_foreach_mul_(pieces_of(running, each.buffers), kept);
        at::_foreach_mul_(pieces_of(value, each.buffers), added);
      }
      running.add_(value);
      each.before = pieces_of(before, each.buffers);
      each.values = pieces_of(running.to(before.dtype()), each.buffers);
      updates.push_back(std::move(each));
    };
    at::Tensor mean;
    const at::Tensor variance = NormStatistics::variances(layers, &mean);
    update(means, mean);
    update(variances, variance);
  }
  return updates;
}

void NormStatistics::forget() noexcept {
  for (Layer& layer : layers_) {
    layer.seen.clear();
    layer.calls = layer.counted = 0;
  }
}

void NormStatistics::commit() {
  const std::vector<Update> all = updates();
  forget();
  make(all);
}

void NormStatistics::discard() {
  c10::NoGradGuard no_grad;
  for (Layer& layer : layers_) layer.seen.clear();
  // The buffers of one dtype and device, and their values before.
  std::vector<std::pair<Update, Numbers>> groups;
  for (const Layer& layer : layers_) {
    const at::Tensor batches = layer.batches();
    if (layer.raised() == 0 || !batches.defined()) continue;
    auto group = std::ranges::find_if(groups, [&](auto& each) {
      const at::Tensor& first = each.first.buffers.front();
      return first.scalar_type() == batches.scalar_type() &&
             first.device() == batches.device();
    });
    if (group == groups.end()) group = groups.emplace(group);
    group->first.buffers.push_back(batches);
    group->second.push_back(layer.raised());
  }
  for (auto& [update, raised] : groups) {
    update.values = pieces_of(joined(update.buffers), update.buffers);
    at::_foreach_sub_(update.values, raised);
  }
  for (auto& [update, raised] : groups) {
    at::_foreach_copy_(update.buffers, update.values);
  }
  forget();
}

namespace {

thread_local NormScope* current_norms = nullptr;
thread_local const UnreadStatistics* current_unread = nullptr;

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
  if (scope && argument(kTraining).toBool() && has_tensor(argument(kMean)) &&
      has_tensor(argument(kVar))) {
    const at::Tensor mean = argument(kMean).toTensor();
    const at::Tensor variance = argument(kVar).toTensor();
    unread_statistics.emplace(mean, variance);
    call = scope->begin(mean, variance);
  }
  if (call.how == NormScope::How::kOnCopies) {
    argument(kMean) = argument(kMean).toTensor().clone();
    argument(kVar) = argument(kVar).toTensor().clone();
  }
  if (call.how != NormScope::How::kWithoutStatistics) {
    return run_intercepted(kCellKey, op, keys, stack);
  }

  const at::Tensor input = argument(kInput).toTensor();
  const double epsilon = argument(kEpsilon).toDouble();
  argument(kMean) = c10::IValue();
  argument(kVar) = c10::IValue();
  run_intercepted(kCellKey, op, keys, stack);
  const std::size_t results = op.schema().returns().size();
  call.scope->end(call.layer, input,
                  torch::jit::peek(*stack, 1, results).toTensor(),
                  torch::jit::peek(*stack, 2, results).toTensor(), epsilon);
}

// The interceptor of add_(number), by which modules count their calls.
void observe_counter(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  constexpr std::size_t kSelf = 0, kArguments = 3;
  NormScope* scope = NormScope::current();
  if (scope) {
    const at::Tensor& self =
        torch::jit::peek(*stack, kSelf, kArguments).toTensor();
    // Module::to(dtype) makes num_batches_tracked a floating-point number.
    if (self.dim() == 0 && !self.requires_grad()) {
      scope->note_counter(self);
    } else {
      scope = nullptr;
    }
  }
  run_intercepted(kCellKey, op, keys, stack);
  if (scope) scope->count(torch::jit::peek(*stack, 0, 1).toTensor());
}

[[maybe_unused]] const bool norms_intercepted = [] {
  intercept(
      kCellKey,
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::add_", "Scalar"),
      c10::KernelFunction::makeFromBoxedFunction<&observe_counter>(),
      "gpipe: counters of a recomputed function");
  for (const char* name : kOperators) {
    if (const auto op = c10::Dispatcher::singleton().findSchema({name, ""})) {
      intercept(kCellKey, *op,
                c10::KernelFunction::makeFromBoxedFunction<&observe>(),
                "gpipe: deferred BatchNorm");
    }
  }
  return true;
}();

}  // namespace

UnreadStatistics::UnreadStatistics(at::Tensor mean, at::Tensor variance)
    : mean_(std::move(mean)),
      variance_(std::move(variance)),
      outer_(std::exchange(current_unread, this)) {}
UnreadStatistics::~UnreadStatistics() { current_unread = outer_; }
bool UnreadStatistics::has(const at::Tensor& tensor) {
  return current_unread && (tensor.is_same(current_unread->mean_) ||
                            tensor.is_same(current_unread->variance_));
}

NormScope::NormScope(NormStatistics* statistics, const Call& call)
    : statistics_(statistics),
      call_(call),
      outer_(std::exchange(current_norms, this)) {}

NormScope::NormScope(CallRecord& call, bool again)
    : NormScope(/*statistics=*/nullptr, {&call, again, /*of_function=*/true}) {}

NormScope::~NormScope() { current_norms = outer_; }

void NormScope::count(const at::Tensor& counter) {
  if (call_.again) return;
  bool is_ours = false;
  for (std::size_t k = 0; statistics_ && k < statistics_->layers_.size(); ++k) {
    auto& layer = statistics_->layers_[k];
    if (!layer.batches().is_same(counter)) continue;
    ++layer.counted;
    is_ours = true;
  }
  if (outer_ && !is_ours) outer_->count(counter);
}

void NormScope::note_counter(const at::Tensor& counter) {
  if (call_.again) return;
  if (outer_) outer_->note_counter(counter);
  CallRecord* const record = call_.record;
  if (!record || !record->is_restored || record->is_restored(counter)) return;
  for (const CallRecord::Counter& each : record->counters) {
    if (each.tensor.is_same(counter)) return;
  }
  record->counters.push_back({counter, counter.detach().clone()});
}

NormScope* NormScope::current() { return current_norms; }

NormScope::NormCall NormScope::begin(const at::Tensor& running_mean,
                                     const at::Tensor& running_var) {
  CallRecord* const record = call_.record;
  NormCall call;
  for (std::size_t k = 0; statistics_ && k < statistics_->layers_.size(); ++k) {
    auto& layer = statistics_->layers_[k];
    if (!layer.running_mean().is_same(running_mean)) continue;
    if (!call_.again) ++layer.calls;
    call = {How::kWithoutStatistics, this, k};
    break;
  }
  if (call_.of_function && call_.again) {
    const bool deferred =
        next_ < record->deferred.size() && record->deferred[next_];
    ++next_;
    if (deferred) call = {How::kWithoutStatistics, this};
  } else if (outer_ && !call.scope) {
    call = outer_->begin(running_mean, running_var);
  }
  if (!record) return call;
  if (call_.of_function && !call_.again) {
    record->deferred.push_back(call.how == How::kWithoutStatistics);
  }
  if (!call_.again) {
    // Also those of deferred BatchNorm, which change before the second call, at
    // the end of the mini-batch.
    record->statistics.insert(record->statistics.end(),
                              {running_mean, running_var});
  } else if (call.how == How::kAsGiven && (!record->is_restored(running_mean) ||
                                           !record->is_restored(running_var))) {
    call.how = How::kOnCopies;
  }
  return call;
}

void NormScope::end(std::size_t layer, const at::Tensor& input,
                    const at::Tensor& mean, const at::Tensor& inverse_deviation,
                    double epsilon) {
  if (call_.again) return;
  statistics_->layers_[layer].seen.push_back(
      {mean.detach(), inverse_deviation.detach(), epsilon,
       input.numel() / input.size(1)});
}

}  // namespace gpipe::internal
