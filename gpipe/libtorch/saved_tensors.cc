#include "gpipe/libtorch/saved_tensors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace gpipe::internal {
namespace {

thread_local SavedTensorHooks* current_hooks = nullptr;
// The backward in which the scope began; -1 outside of any.
thread_local int current_task = -1;

// LibTorch's engine, which also serves the hooks of the calling thread.
class HookEngine : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& instance() {
    static HookEngine engine;
    return engine;
  }
  // LibTorch requires that a subclass stops its threads before its destructor
  // returns.
  ~HookEngine() override { stop(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    // A backward inside the scope runs on this thread for CPU tensors, but on
    // another one for accelerators. So its tensors get no hooks on any device.
    const bool in_scope =
        torch::autograd::get_current_graph_task_id() == current_task;
    return current_hooks && in_scope ? current_hooks->next() : nullptr;
  }

 private:
  HookEngine() = default;
};

// Before main(), so that no backward runs in another engine.
[[maybe_unused]] const bool installed = [] {
  torch::autograd::set_default_engine_stub(&HookEngine::instance);
  return true;
}();

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorHooks* source)
    : outer_(current_hooks), outer_task_(current_task) {
  TORCH_CHECK(
      &torch::autograd::Engine::get_default_engine() == &HookEngine::instance(),
      "another autograd engine has replaced gpipe's, so that tensors "
      "that autograd saves cannot be recomputed; do not call "
      "set_default_engine_stub(), and do not load LibTorch's Python "
      "bindings into this program");
  current_hooks = source;
  current_task = torch::autograd::get_current_graph_task_id();
}

SavedTensorScope::~SavedTensorScope() {
  current_hooks = outer_;
  current_task = outer_task_;
}

SavedTensorHooks* SavedTensorScope::current() { return current_hooks; }

}  // namespace gpipe::internal
