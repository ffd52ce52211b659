// A scope in which a module is in evaluation mode.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace gpipe {

// Sets a module and its submodules to evaluation mode while in scope. The
// destructor restores the mode of each module, also of layers that were in
// evaluation mode inside a training module (a frozen BatchNorm). Errors of a
// layer's own train() are lost there. Not thread-safe.
class EvalScope {
 public:
  // `module`: must be owned by a module holder (shared_ptr), as modules()
  // requires. If train() of a layer throws, restores all modes, and rethrows.
  explicit EvalScope(torch::nn::Module& module) {
    for (const auto& each : module.modules()) {
      modes_.emplace_back(each, each->is_training());
    }
    try {
      module.eval();
    } catch (...) {
      restore();
      throw;
    }
  }
  ~EvalScope() { restore(); }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  void restore() const noexcept {
    // train() also sets the submodules. A submodule comes after its parent in
    // the list, so its own mode is set last.
    for (const auto& [module, training] : modes_) {
      try {
        module->train(training);
      } catch (...) {
        // The layer stays as it is.
      }
    }
  }

  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace gpipe
