// The purpose of allocated memory, for code that counts it.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <utility>

namespace gpipe::internal {

// The purpose of a piece of memory.
enum class MemoryKind {
  kActivation,  // everything that is none of the others
  kParameter,   // and buffers
  kGradient,    // of parameters, once added to their sum
  kOptimizerState,
  kBoundary,   // copies of tensors from other devices
  kWorkspace,  // used by an operator while it runs
};
constexpr std::size_t kMemoryKinds = 6;

// Sets the kind of memory that this thread allocates while in scope.
class MemoryKindScope {
 public:
  explicit MemoryKindScope(MemoryKind kind)
      : outer_(std::exchange(current_, kind)) {}
  ~MemoryKindScope() { current_ = outer_; }
  MemoryKindScope(const MemoryKindScope&) = delete;
  MemoryKindScope& operator=(const MemoryKindScope&) = delete;

  // Returns the kind that is set on this thread.
  static MemoryKind current() { return current_; }

 private:
  static inline thread_local MemoryKind current_ = MemoryKind::kActivation;
  const MemoryKind outer_;
};

using LabelFunction = void (*)(const at::Tensor&, MemoryKind);
namespace detail {
inline std::atomic<LabelFunction> label_function{nullptr};
}

// Sets the kind of the memory behind `tensor` from now on. Used where an
// allocator cannot know the kind otherwise. Undefined tensors are ignored.
//
// Cost: one atomic load, unless a counting allocator is installed (see
// on_label()).
inline void label_memory(const at::Tensor& tensor, MemoryKind kind) {
  const LabelFunction function =
      detail::label_function.load(std::memory_order_relaxed);
  if (function != nullptr && tensor.defined()) function(tensor, kind);
}

// Sets the function that label_memory() calls; null (the default) for none.
// Meant for an allocator when it is installed. Thread-safe.
inline void on_label(LabelFunction function) {
  detail::label_function = function;
}

}  // namespace gpipe::internal
