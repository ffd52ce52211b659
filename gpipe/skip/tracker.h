// Where stash() puts a tensor and pop() finds it: one tracker per cell in a
// pipeline, one per thread outside of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "gpipe/skip/namespace.h"

namespace gpipe {

class SkipTracker {
 public:
  virtual ~SkipTracker() = default;

  virtual void save(const SkipKey& key, std::optional<at::Tensor> tensor) = 0;

  // Hands the tensor out and forgets it. c10::Error if nothing was saved.
  virtual std::optional<at::Tensor> load(const SkipKey& key) = 0;

 protected:
  [[noreturn]] static void throw_not_stashed(const SkipKey& key);
};

// The tracker of this thread: the innermost UseSkipTracker, else the thread's
// own, which serves a plain Sequential.
SkipTracker& current_skip_tracker();

// Makes `tracker` the current one of this thread while in scope.
class UseSkipTracker {
 public:
  explicit UseSkipTracker(SkipTracker& tracker);
  ~UseSkipTracker();
  UseSkipTracker(const UseSkipTracker&) = delete;
  UseSkipTracker& operator=(const UseSkipTracker&) = delete;

 private:
  SkipTracker* previous_;
};

}  // namespace gpipe
