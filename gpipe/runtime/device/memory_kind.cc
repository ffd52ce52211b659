#include "gpipe/runtime/device/memory_kind.h"

#include <atomic>
#include <utility>

namespace gpipe::internal {
namespace {

thread_local MemoryKind current_kind = MemoryKind::kActivation;
std::atomic<LabelFunction> label_function{nullptr};

}  // namespace

MemoryKindScope::MemoryKindScope(MemoryKind kind)
    : outer_(std::exchange(current_kind, kind)) {}

MemoryKindScope::~MemoryKindScope() { current_kind = outer_; }

MemoryKind MemoryKindScope::current() { return current_kind; }

void label_memory(const at::Tensor& tensor, MemoryKind kind) {
  const LabelFunction function = label_function.load(std::memory_order_relaxed);
  if (function != nullptr && tensor.defined()) function(tensor, kind);
}

void on_label(LabelFunction function) { label_function = function; }

}  // namespace gpipe::internal
