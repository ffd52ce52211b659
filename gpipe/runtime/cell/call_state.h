// Inputs, skip tensors and autocast of a function that is called a second time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/skip/tracker.h"

namespace gpipe::internal {

// An input of the first call, kept without its graph for the second call. If
// the call runs inside another checkpointed function, that function keeps the
// tensor, or recomputes it.
class KeptTensor {
 public:
  explicit KeptTensor(const at::Tensor& tensor);
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
    using Keep = std::function<KeptTensor(const SkipKey&, const at::Tensor&)>;
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
    std::optional<KeptTensor> tensor;
  };
  std::vector<Popped> popped_;
};

}  // namespace gpipe::internal
