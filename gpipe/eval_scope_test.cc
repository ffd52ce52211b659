#include "gpipe/eval_scope.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace gpipe {
namespace {

namespace nn = torch::nn;

std::shared_ptr<nn::Module> holder_of(
    std::initializer_list<std::shared_ptr<nn::Module>> modules) {
  auto holder = std::make_shared<nn::Module>();
  for (const auto& each : modules) {
    holder->register_module(std::to_string(holder->children().size()), each);
  }
  return holder;
}

std::vector<bool> modes_of(const nn::Module& module) {
  std::vector<bool> modes;
  for (const auto& each : module.modules()) {
    modes.push_back(each->is_training());
  }
  return modes;
}

TEST(EvalScope, GivesEachModuleItsOwnModeBack) {
  const auto frozen = holder_of({}), trained = holder_of({});
  const auto shared = holder_of({});  // occurs twice in the model
  const auto inner = holder_of({shared, trained});
  const auto model = holder_of({frozen, inner, holder_of({shared})});
  for (const auto& each : {frozen, shared, inner}) each->eval();
  trained->train();  // inside a module in evaluation mode
  const std::vector<bool> modes{true, false, false, false, true, true, false};
  ASSERT_EQ(modes_of(*model), modes);
  {
    const EvalScope scope(*model);
    EXPECT_EQ(modes_of(*model), std::vector<bool>(7, false));
  }
  EXPECT_EQ(modes_of(*model), modes);

  model->eval();
  { const EvalScope scope(*model); }
  EXPECT_EQ(modes_of(*model), std::vector<bool>(7, false));
}

}  // namespace
}  // namespace gpipe
