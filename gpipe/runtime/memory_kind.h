// What memory is for, for those who count it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace gpipe {

enum class MemoryKind {
  kActivation,  // whatever is none of the others
  kParameter,   // and buffers
  kGradient,    // of parameters, from when it has come to their sum
  kOptimizerState,
  kBoundary,   // copies of what other devices have made
  kWorkspace,  // what an operator takes for itself while it runs
};
constexpr std::size_t kMemoryKinds = 6;

// Of what is allocated on this thread while in scope.
class MemoryKindScope {
 public:
  explicit MemoryKindScope(MemoryKind kind);
  ~MemoryKindScope();
  MemoryKindScope(const MemoryKindScope&) = delete;
  MemoryKindScope& operator=(const MemoryKindScope&) = delete;

  static MemoryKind current();

 private:
  const MemoryKind outer_;
};

// Says what the memory behind `tensor` is for from now on, for which its
// allocator has no other way to know. Undefined tensors have none.
//
// Costs next to nothing unless somebody counts: see on_label().
void label_memory(const at::Tensor& tensor, MemoryKind kind);

// What label_memory() calls from now on; null, as it is at first, for nothing.
// Threads: any; meant for an allocator when it is installed.
using LabelFunction = void (*)(const at::Tensor&, MemoryKind);
void on_label(LabelFunction function);

}  // namespace gpipe
