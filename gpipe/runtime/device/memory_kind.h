// The purpose of allocated memory, for code that counts it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

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
  explicit MemoryKindScope(MemoryKind kind);
  ~MemoryKindScope();
  MemoryKindScope(const MemoryKindScope&) = delete;
  MemoryKindScope& operator=(const MemoryKindScope&) = delete;

  // Returns the kind that is set on this thread.
  static MemoryKind current();

 private:
  const MemoryKind outer_;
};

// Sets the kind of the memory behind `tensor` from now on. Used where an
// allocator cannot know the kind otherwise. Undefined tensors are ignored.
//
// Cost: one atomic load, unless a counting allocator is installed (see
// on_label()).
void label_memory(const at::Tensor& tensor, MemoryKind kind);

// Sets the function that label_memory() calls; null (the default) for none.
// Meant for an allocator when it is installed. Thread-safe.
using LabelFunction = void (*)(const at::Tensor&, MemoryKind);
void on_label(LabelFunction function);

}  // namespace gpipe::internal
