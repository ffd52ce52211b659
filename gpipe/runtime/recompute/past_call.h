// What a second call must see again, and must do again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/runtime/operators/random.h"
#include "gpipe/runtime/recompute/buffers.h"
#include "gpipe/skip/skippable.h"

namespace gpipe::internal {

// The sizes and the dtype of a tensor, and whether it requires grad.
struct Outline {
  bool defined = false;
  c10::ScalarType type = c10::kFloat;
  c10::SmallVector<int64_t, 5> sizes;
  bool requires_grad = false;

  // `with_grad`: whether requires_grad counts. If not, it stays false.
  explicit Outline(const at::Tensor& tensor, bool with_grad = false);
  friend bool operator==(const Outline&, const Outline&) = default;
  // Returns a text such as "[2, 3] Float", "[2, 3] Float that requires grad" or
  // "undefined".
  std::string text() const;
};

// An input of the first call, kept without its graph for the second call. If
// the call runs inside another checkpointed function, that function keeps the
// tensor, or recomputes it.
class CallInput {
 public:
  explicit CallInput(const at::Tensor& tensor);
  // Returns a leaf with the values of the tensor. Requires grad as the tensor
  // did. Throws what a recompute throws.
  at::Tensor get() const;

 private:
  torch::autograd::SavedVariable saved_;
  bool defined_ = false, requires_grad_ = false;
};

// The autocast state of a thread: for each type of device whether it is on, and
// the dtype.
class AutocastState {
 public:
  // Reads the state of this thread.
  AutocastState();
  // Sets the state of this thread.
  void set() const;

 private:
  struct OfDevice {
    bool enabled;
    at::ScalarType type;
  };
  std::vector<OfDevice> devices_;
};

// Sets the autocast state of this thread while in scope, without LibTorch's
// cache of cast weights: the cache must not get tensors whose graph is dropped.
class UseAutocast {
 public:
  explicit UseAutocast(const AutocastState& state);
  ~UseAutocast();
  UseAutocast(const UseAutocast&) = delete;
  UseAutocast& operator=(const UseAutocast&) = delete;

 private:
  const AutocastState before_;
  const bool cache_;
};

// The skip tensors that a function pops and stashes in one call.
class CallSkips {
 public:
  // The tracker of the first call. It passes tensors on, and keeps those that
  // the function pops as further inputs. `keep` makes these.
  class First : public SkipTracker {
   public:
    using Keep = std::function<CallInput(const SkipKey&, const at::Tensor&)>;
    First(CallSkips& skips, SkipTracker& outer, Keep keep)
        : skips_(skips), outer_(outer), keep_(std::move(keep)) {}
    void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
    std::optional<at::Tensor> load(const SkipKey& key) override;

   private:
    CallSkips& skips_;
    SkipTracker& outer_;
    const Keep keep_;
    std::map<SkipKey, int> stashed_;
  };

  // The tracker of a second call. It drops stashed tensors.
  class Second : public SkipTracker {
   public:
    explicit Second(const CallSkips& skips);
    void save(const SkipKey& key, std::optional<at::Tensor> tensor) override;
    std::optional<at::Tensor> load(const SkipKey& key) override;

   private:
    std::map<SkipKey, std::vector<std::optional<at::Tensor>>> held_;
  };

 private:
  struct Popped {
    SkipKey key;
    std::optional<CallInput> tensor;
  };
  std::vector<Popped> popped_;
};

// The first call of some layers or of a function, which is computed again in
// the backward: what it has seen (inputs, parameters, training modes, buffers,
// random numbers) and what it has returned. A cell and a checkpointed function
// each have one:
//
//   PastCall past("partition 3", "", &modules);
//   past.watch_input(...); past.watch_parameter(...);
//   ... the first call, with draws() and norms() ...
//   past.first_call_done(outputs, ...);
//   ... later ...
//   past.check_unchanged();
//   PastBuffers buffers(past.changed_buffers());
//   ... the second call, with draws() and norms() ...
//   past.check_outputs(outputs); buffers.restore();
//
// Tensors are watched by their versions. Threads: one at a time.
class PastCall {
 public:
  PastCall() = default;
  // Notes the training modes of `modules` and copies their buffers. `callee`:
  // what is called, for errors. `remedy`: what else a user can do about inputs
  // that change. `modules`: null if they are not known; must outlive this
  // object.
  PastCall(std::string callee, std::string remedy, CalledModules* modules);

  // Watch from now on.
  void watch_input(std::string name, const at::Tensor& tensor);
  void watch_parameter(const at::Tensor& parameter);

  // Random numbers and statistics, for RandomScope and NormScope.
  CallDraws& draws() { return draws_; }
  CallNorms& norms() { return norms_; }

  // Notes sizes and dtypes of what the first call has returned. `with_grad`:
  // and which outputs require grad. Throws c10::Error if the call has changed
  // an input in place.
  void first_call_done(const std::vector<at::Tensor>& outputs, bool with_grad);

  // Drops the copies of the buffers that the first call has not changed. From
  // now on these must not change (check_unchanged()). Without this function,
  // other code may change any buffer.
  void keep_changed_buffers();

  // Throws c10::Error if an input, a parameter, a training mode, or a buffer
  // without copy has changed, so that a second call would see something else.
  void check_unchanged() const;

  // Returns the buffers that must have their old values in a second call: those
  // of norms, others that have changed, and counters.
  std::vector<BufferValue> changed_buffers() const;
  // Returns whether buffers other than those of norms and counters are among
  // changed_buffers().
  bool has_changed_other_buffers() const;

  // Throws c10::Error if the second call has returned other sizes or dtypes.
  void check_outputs(const std::vector<at::Tensor>& outputs) const;

 private:
  struct Input {
    std::string name;
    WatchedVersion version;
  };
  struct Parameter {
    at::Tensor tensor;
    WatchedVersion version;
  };

  // Throws c10::Error if an input has been changed in place. `when`: by what,
  // or at which time.
  void check_inputs(const char* when) const;
  bool is_norm(const BufferValue& buffer) const;
  // Returns "parameter '0.weight' ([3, 3] Float) of partition 2".
  std::string describe(const char* kind, const at::Tensor& tensor) const;

  std::string callee_, remedy_;
  CalledModules* modules_ = nullptr;
  std::vector<bool> training_;
  std::vector<Input> inputs_;
  std::vector<Parameter> parameters_;
  std::vector<BufferValue> buffers_;  // undefined value: the copy was dropped
  CallDraws draws_;
  CallNorms norms_;
  std::vector<Outline> outputs_;
  bool with_grad_ = false;  // of outputs_
};

}  // namespace gpipe::internal
