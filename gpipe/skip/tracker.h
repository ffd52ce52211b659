// The storage for skip tensors between stash() and pop(): one tracker per cell
// in a pipeline, one per thread outside of a pipeline.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "gpipe/skip/namespace.h"

namespace gpipe::internal {

// A store of skip tensors by key.
class SkipTracker {
 public:
  virtual ~SkipTracker() = default;

  // Stores `tensor` under `key`. A tensor that is there already is replaced.
  virtual void save(const SkipKey& key, std::optional<at::Tensor> tensor) = 0;

  // Returns the tensor under `key` and forgets it. Throws c10::Error if nothing
  // was saved.
  virtual std::optional<at::Tensor> load(const SkipKey& key) = 0;

 protected:
  [[noreturn]] static void throw_not_stashed(const SkipKey& key);
};

// Returns the tracker of this thread: that of the innermost UseSkipTracker, or
// else the thread's own tracker, which serves a plain Sequential.
SkipTracker& current_skip_tracker();

// Makes `tracker` the current tracker of this thread while in scope.
class UseSkipTracker {
 public:
  explicit UseSkipTracker(SkipTracker& tracker);
  ~UseSkipTracker();
  UseSkipTracker(const UseSkipTracker&) = delete;
  UseSkipTracker& operator=(const UseSkipTracker&) = delete;

 private:
  SkipTracker* previous_;
};

}  // namespace gpipe::internal
