#include "gpipe/runtime/cell/checkpointed_call.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "gpipe/libtorch/node.h"
#include "gpipe/libtorch/saved_tensors.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/cell/phase_scope.h"
#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/runtime/operators/random.h"
#include "gpipe/runtime/recompute/buffers.h"
#include "gpipe/runtime/recompute/past_call.h"
#include "gpipe/skip/skippable.h"

namespace gpipe::internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::SavedVariableHooks;

class CheckpointedCall;

// A tensor that the first call has saved for its backward. `value`: undefined
// until a second call has set it.
struct SavedTensor {
  SavedTensor(std::shared_ptr<CheckpointedCall> call, const at::Tensor& tensor)
      : call(std::move(call)), outline(tensor), first_version(tensor) {
    if (tensor.has_storage()) {
      first_memory = tensor.storage().getWeakStorageImpl();
    }
  }
  // Returns whether `tensor` has the memory of the tensor of the first call,
  // which has been changed in place since then.
  bool has_changed(const at::Tensor& tensor) const {
    if (!first_memory || !tensor.has_storage()) return false;
    const auto memory = first_memory->lock();  // null if it is gone
    return memory.get() == tensor.storage().unsafeGetStorageImpl() &&
           first_version.is_changed();
  }

  const std::shared_ptr<CheckpointedCall> call;
  const Outline outline;
  const WatchedVersion first_version;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> first_memory;
  at::Tensor value;
  WatchedVersion version;  // of value
};

// An input of the first call, kept without its graph for the second call. If
// the call runs inside another checkpointed function, that function keeps the
// tensor, or recomputes it.
//
// Work in place on an input without elements is allowed, see
// PastCall::watch_input(). So such an input has a version of its own, and the
// second call gets a copy, which is no leaf if the input was none.
class KeptInput {
 public:
  explicit KeptInput(const at::Tensor& tensor) : defined_(tensor.defined()) {
    if (!defined_) return;
    requires_grad_ = tensor.requires_grad();
    may_change_ = tensor.numel() == 0 && !(requires_grad_ && tensor.is_leaf());
    // Detached: the graph behind an input must not live longer than in the
    // plain model.
    saved_ = torch::autograd::SavedVariable(
        may_change_ ? tensor.variable_data() : tensor.detach(),
        /*is_output=*/false);
  }
  // Returns a tensor with the values of the input, a leaf unless the input may
  // change. Requires grad as the input did. Throws what a recompute throws.
  at::Tensor get() const {
    if (!defined_) return {};
    at::Tensor tensor = saved_.unpack().detach();
    if (requires_grad_) tensor.requires_grad_();
    return may_change_ ? tensor.clone() : tensor;
  }

 private:
  torch::autograd::SavedVariable saved_;
  bool defined_ = false, requires_grad_ = false, may_change_ = false;
};

// The autocast state of a thread: for each type of device whether it is on, and
// the dtype; and whether LibTorch keeps cast weights.
class AutocastState {
 public:
  // Reads the state of this thread. `cache`: used in place of its cache state.
  explicit AutocastState(bool cache = at::autocast::is_autocast_cache_enabled())
      : cache_(cache) {
    for (const c10::DeviceType device :
         at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
      devices_.push_back({at::autocast::is_autocast_enabled(device),
                          at::autocast::get_autocast_dtype(device)});
    }
  }
  // Returns whether it is on for any type of device.
  bool is_enabled() const {
    return std::ranges::any_of(devices_, &OfDevice::enabled);
  }
  // Sets the state of this thread.
  void set() const {
    std::size_t k = 0;
    for (const c10::DeviceType device :
         at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
      at::autocast::set_autocast_enabled(device, devices_[k].enabled);
      at::autocast::set_autocast_dtype(device, devices_[k].type);
      ++k;
    }
    at::autocast::set_autocast_cache_enabled(cache_);
  }

 private:
  struct OfDevice {
    bool enabled;
    at::ScalarType type;
  };
  std::vector<OfDevice> devices_;
  bool cache_;
};

// Ends a second call of `of` which has computed all that the first call has
// saved so far.
struct AllComputed : std::exception {
  explicit AllComputed(const CheckpointedCall& of) : of(&of) {}
  const char* what() const noexcept override {
    return "gpipe::checkpoint() stops the second call of a function whose "
           "first call is at work; let this exception pass";
  }
  const CheckpointedCall* of;
};

// One call of a checkpointed function, kept by what its graph has saved.
class CheckpointedCall : public std::enable_shared_from_this<CheckpointedCall> {
 public:
  CheckpointedCall(CheckpointedFunction function,
                   const std::vector<Value>& inputs,
                   std::shared_ptr<torch::nn::Module> module);

  // Makes the first call.
  Value run(std::vector<Value> inputs);

  // Returns the value of a saved tensor. Calls the function again if the value
  // is not known.
  // Threads: any; those of the autograd engine.
  at::Tensor value_of(SavedTensor& saved);

 private:
  class FirstHooks;
  class SecondHooks;
  class FirstSkips;
  class SecondSkips;

  void watch_leaves_of(const Value& output, uint64_t begin);
  std::vector<Value> inputs_again() const;
  void recompute();
  void run_again(std::vector<Value> inputs, SkipTracker& skips);

  const CheckpointedFunction function_;
  std::vector<std::pair<Value::Kind, std::vector<KeptInput>>> inputs_;
  // The skip tensors that the function pops, in order; nullopt for "no tensor".
  std::vector<std::pair<SkipKey, std::optional<KeptInput>>> popped_;
  std::set<const Node*> of_inputs_;  // their nodes, during the first call
  std::optional<CalledModules> modules_;
  PastCall past_;
  // The cache must not get tensors whose graph is dropped.
  const AutocastState autocast_{/*cache=*/false};
  std::string layer_;  // of the pipeline, in which the function was called
  bool first_is_done_ = false;

  std::mutex mutex_;  // guards values of saved tensors, and second calls
  std::vector<std::weak_ptr<SavedTensor>> saved_;
};

// The hooks of the first call. They keep no tensor.
class CheckpointedCall::FirstHooks : public SavedTensorHooks {
 public:
  explicit FirstHooks(CheckpointedCall& call) : call_(call) {}
  std::unique_ptr<SavedVariableHooks> next() override {
    return std::make_unique<Hook>(call_);
  }

 private:
  struct Hook : SavedVariableHooks {
    explicit Hook(CheckpointedCall& call) : call(&call) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      saved = std::make_shared<SavedTensor>(call->shared_from_this(), tensor);
      call->saved_.push_back(saved);
    }
    at::Tensor call_unpack_hook() override {
      return saved->call->value_of(*saved);
    }
    CheckpointedCall* const call;
    std::shared_ptr<SavedTensor> saved;
  };
  CheckpointedCall& call_;
};

// The hooks of a second call. They give values to the saved tensors of the
// first call, if the graph still has these.
class CheckpointedCall::SecondHooks : public SavedTensorHooks {
 public:
  explicit SecondHooks(CheckpointedCall& call) : call_(call) {}
  std::unique_ptr<SavedVariableHooks> next() override {
    return std::make_unique<Hook>(*this);
  }
  // Returns the number of saved tensors.
  std::size_t count() const { return next_; }
  // Returns the first difference between the saved tensors of the two calls;
  // empty if there is none.
  const std::string& difference() const { return difference_; }
  // Returns the outline of a tensor that the first call has saved, too, and
  // that has another value now; empty if there is none.
  const std::string& changed() const { return changed_; }

 private:
  // Keeps the tensor for backwards inside the function.
  struct Hook : SavedVariableHooks {
    explicit Hook(SecondHooks& all) : all(&all) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      const at::Tensor kept = PastBuffers::to_save(tensor);
      value = kept.tensor_data();
      all->add(value, /*is_buffer=*/!kept.is_same(tensor));
      all->stop_if_complete();
    }
    at::Tensor call_unpack_hook() override { return value; }
    SecondHooks* const all;
    at::Tensor value;
  };

  // `is_buffer`: `value` is a copy of a buffer, which has its value of the
  // first call.
  void add(const at::Tensor& value, bool is_buffer) {
    const std::size_t k = next_++;
    if (k >= call_.saved_.size()) return;
    const auto saved = call_.saved_[k].lock();
    if (!saved || saved->value.defined()) return;
    const Outline outline(value);
    if (!(outline == saved->outline) && difference_.empty()) {
      difference_ =
          c10::str("saved tensor ", k, " is ", saved->outline.text(),
                   " in the forward and ", outline.text(), " in the recompute");
    }
    if (!is_buffer && saved->has_changed(value) && changed_.empty()) {
      changed_ = outline.text();
    }
    saved->value = value;
    saved->version = WatchedVersion(value);
  }
  // If the first call waits for this one, what it will do next must not be done
  // here: it would draw random numbers, change buffers and pop skip tensors
  // before the first call does.
  void stop_if_complete() const {
    if (call_.first_is_done_ || next_ < call_.saved_.size()) return;
    const auto stop = [this] { throw AllComputed(call_); };
    RandomScope* const random = RandomScope::current();  // none in the engine
    random ? random->after_draw(stop) : stop();
  }

  CheckpointedCall& call_;
  std::size_t next_ = 0;
  std::string difference_, changed_;
};

// The skip tracker of the first call. It passes tensors on, and keeps those
// that the function pops as further inputs: under the hooks around the call.
class CheckpointedCall::FirstSkips : public SkipTracker {
 public:
  explicit FirstSkips(CheckpointedCall& call) : call_(call) {}
  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override {
    ++stashed_[key];
    outer_.save(key, std::move(tensor));
  }
  std::optional<at::Tensor> load(const SkipKey& key) override {
    std::optional<at::Tensor> tensor = outer_.load(key);
    const auto own = stashed_.find(key);
    if (own != stashed_.end()) {
      stashed_.erase(own);
      return tensor;
    }
    std::optional<KeptInput> kept;
    if (tensor) {
      call_.of_inputs_.insert(tensor->grad_fn().get());
      call_.past_.watch_input("skip tensor '" + key.name + "'", *tensor);
      const SavedTensorScope around(outer_hooks_);
      kept.emplace(*tensor);
    }
    call_.popped_.emplace_back(key, std::move(kept));
    return tensor;
  }

 private:
  CheckpointedCall& call_;
  SkipTracker& outer_ = current_skip_tracker();
  SavedTensorHooks* const outer_hooks_ = SavedTensorScope::current();
  std::map<SkipKey, int> stashed_;
};

// The skip tracker of a second call. It drops stashed tensors.
class CheckpointedCall::SecondSkips : public SkipTracker {
 public:
  explicit SecondSkips(const CheckpointedCall& call) {
    for (const auto& [key, kept] : call.popped_) {
      held_[key].push_back(kept ? std::make_optional(kept->get())
                                : std::nullopt);
    }
  }
  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override {
    auto& tensors = held_[key];
    tensors.insert(tensors.begin(), std::move(tensor));
  }
  std::optional<at::Tensor> load(const SkipKey& key) override {
    const auto found = held_.find(key);
    if (found == held_.end() || found->second.empty()) throw_not_stashed(key);
    std::optional<at::Tensor> tensor = std::move(found->second.front());
    found->second.erase(found->second.begin());
    return tensor;
  }

 private:
  std::map<SkipKey, std::vector<std::optional<at::Tensor>>> held_;
};

CheckpointedCall::CheckpointedCall(CheckpointedFunction function,
                                   const std::vector<Value>& inputs,
                                   std::shared_ptr<torch::nn::Module> module)
    : function_(std::move(function)) {
  if (module) modules_.emplace().add(/*prefix=*/"", module);
  past_ = PastCall(module ? module->name() : "a checkpointed function",
                   /*remedy=*/"", modules_ ? &*modules_ : nullptr);
  for (const Value& input : inputs) {
    const std::string name = "input " + std::to_string(inputs_.size());
    auto& [kind, tensors] = inputs_.emplace_back();
    kind = input.kind();
    for (const at::Tensor& each : input.tensors()) {
      past_.watch_input(name, each);
      tensors.emplace_back(each);
    }
  }
  if (modules_) {
    for (const at::Tensor& each : modules_->parameters()) {
      past_.watch_parameter(each);
    }
  }
  if (const std::string* const layer = layer_at_work()) layer_ = *layer;
}

Value CheckpointedCall::run(std::vector<Value> inputs) {
  const uint64_t begin = at::sequence_number::peek();
  for (const Value& input : inputs) {
    for (const at::Tensor& each : input.tensors()) {
      if (each.defined()) of_inputs_.insert(each.grad_fn().get());
    }
  }
  Value output;
  {
    FirstHooks hooks(*this);
    FirstSkips skips(*this);
    const SavedTensorScope saved(&hooks);
    const UseSkipTracker use_skips(skips);
    const PhaseScope phase(Phase::kCheckpointing);
    RandomScope random(past_.record(), /*again=*/false);
    const NormScope norms(past_.record(), /*again=*/false);
    output = function_(std::move(inputs));
  }
  past_.first_call_done(output.tensors(), /*with_grad=*/false);
  // Others may read it during the second call.
  for (at::Tensor& each : output.tensors()) {
    if (past_.has_memory_of_counter(each)) each = each.clone();
  }
  past_.keep_changed_buffers();
  watch_leaves_of(output, begin);
  of_inputs_.clear();
  first_is_done_ = true;
  return output;
}

// Walks the part of the graph that the first call has made on this thread, and
// the casts of weights that autocast has kept since an earlier call. An input
// may be a cast, too, but the function does not read what it was cast from.
void CheckpointedCall::watch_leaves_of(const Value& output, uint64_t begin) {
  const bool has_casts =
      at::autocast::is_autocast_cache_enabled() && autocast_.is_enabled();
  walk(gradient_edges(output.tensors()), [&](Node& node) {
    if (node.sequence_nr() < begin) {
      return has_casts && node.name() == "ToCopyBackward0" &&
             !of_inputs_.contains(&node);
    }
    if (node.num_outputs() == 0) {
      if (auto* const leaf = dynamic_cast<AccumulateGrad*>(&node)) {
        past_.watch_parameter(leaf->variable);
      }
    }
    return true;
  });
}

std::vector<Value> CheckpointedCall::inputs_again() const {
  std::vector<Value> inputs;
  for (const auto& [kind, kept] : inputs_) {
    std::vector<at::Tensor> tensors;
    for (const KeptInput& each : kept) tensors.push_back(each.get());
    inputs.emplace_back(kind, std::move(tensors));
  }
  return inputs;
}

at::Tensor CheckpointedCall::value_of(SavedTensor& saved) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!saved.value.defined()) recompute();
  TORCH_CHECK(!saved.version.is_changed(), "a tensor that backward needs (",
              saved.outline.text(),
              ") has been changed in place after a checkpointed function saved "
              "it; let the function, or the code after it, change a clone");
  return saved.value;
}

void CheckpointedCall::recompute() {
  past_.check_unchanged();
  const c10::AutoGradMode with_graph(true);
  try {
    // An outer checkpointed function computes these first.
    std::vector<Value> inputs = inputs_again();
    SecondSkips skips(*this);
    run_again(std::move(inputs), skips);
  } catch (...) {
    // The next attempt begins anew.
    for (const auto& each : saved_) {
      if (const auto saved = each.lock()) saved->value.reset();
    }
    if (std::string* const layer = layer_at_work()) {
      if (layer->empty()) *layer = layer_;
    }
    throw;
  }
}

void CheckpointedCall::run_again(std::vector<Value> inputs,
                                 SkipTracker& skips) {
  SecondHooks hooks(*this);
  Value output;
  {
    const SavedTensorScope saved(&hooks);
    const UseSkipTracker use_skips(skips);
    const PhaseScope phase(Phase::kRecomputing);
    const AutocastState before;
    autocast_.set();
    const auto restore = c10::make_scope_exit([&] { before.set(); });
    PastBuffers buffers(past_.changed_buffers());
    const GradsOfNow grads;
    RandomScope random(past_.record(), /*again=*/true);
    const NormScope norms(past_.record(), /*again=*/true);
    try {
      output = function_(std::move(inputs));
    } catch (const AllComputed& end) {
      if (end.of != this) throw;
    }
    buffers.restore();
  }
  // The function may also run a backward inside its first call.
  if (!first_is_done_) return;
  past_.check_outputs(output.tensors());
  constexpr const char* kRemedy =
      "; a checkpointed function must do the same in both calls";
  TORCH_CHECK(hooks.difference().empty(), hooks.difference(), kRemedy);
  TORCH_CHECK(hooks.changed().empty(), "a tensor (", hooks.changed(),
              ") that a checkpointed function uses, and that is none of its "
              "inputs, has been changed in place since the forward, by the "
              "function or by other code, so that the recompute has another "
              "value. Make it a buffer of a module, and use "
              "gpipe::Recomputed(module) or gpipe::checkpoint(module, inputs)");
  TORCH_CHECK(hooks.count() == saved_.size(), "a checkpointed function saved ",
              saved_.size(), " tensors for its backward in the forward and ",
              hooks.count(), " in the recompute", kRemedy);
}

}  // namespace

Value call_checkpointed(CheckpointedFunction function,
                        std::vector<Value> inputs,
                        std::shared_ptr<torch::nn::Module> module) {
  // A second call would not have the tangents, and so would save other tensors.
  const bool any_tangent = std::ranges::any_of(inputs, [](const Value& input) {
    const std::vector<at::Tensor>& tensors = input.tensors();
    return std::ranges::any_of(tensors, has_tangent);
  });
  if (!c10::GradMode::is_enabled() || c10::InferenceMode::is_enabled() ||
      any_tangent) {
    return function(std::move(inputs));
  }
  const auto call = std::make_shared<CheckpointedCall>(
      std::move(function), inputs, std::move(module));
  return call->run(std::move(inputs));
}

}  // namespace gpipe::internal
