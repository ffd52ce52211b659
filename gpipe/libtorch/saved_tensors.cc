#include "gpipe/libtorch/saved_tensors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace gpipe::internal {
namespace {

thread_local SavedTensorHooks* current_hooks = nullptr;

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
    return current_hooks ? current_hooks->next() : nullptr;
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
    : outer_(current_hooks) {
  TORCH_CHECK(
      &torch::autograd::Engine::get_default_engine() == &HookEngine::instance(),
      "another autograd engine has replaced gpipe's, so that tensors "
      "that autograd saves cannot be recomputed; do not call "
      "set_default_engine_stub(), and do not load LibTorch's Python "
      "bindings into this program");
  current_hooks = source;
}

SavedTensorScope::~SavedTensorScope() { current_hooks = outer_; }

SavedTensorHooks* SavedTensorScope::current() { return current_hooks; }

}  // namespace gpipe::internal
