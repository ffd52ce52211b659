// Evaluation mode for a while.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace gpipe {

// A module, and all that is in it, is in evaluation mode in this scope. Then
// each has its own mode again, also layers that were in evaluation mode inside
// of ones in training (a frozen BatchNorm). Threads: one at a time.
class EvalScope {
 public:
  // `module`: in a holder, as modules() wants it.
  explicit EvalScope(torch::nn::Module& module) {
    for (const auto& each : module.modules()) {
      modes_.emplace_back(each, each->is_training());
    }
    module.eval();
  }
  ~EvalScope() {
    // What is inside comes after what it is in, whose train() reaches it, so
    // that its own is the last word.
    for (const auto& [module, training] : modes_) module->train(training);
  }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace gpipe
