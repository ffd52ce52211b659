#include "training/files/step_writer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "training/testing/run_states.h"

namespace gpipe::internal {
namespace {

RunState state_of(const at::Tensor& weight, const at::Tensor& momentum) {
  RunState state;
  state.step = 3;
  state.model.insert("weight", weight);
  OptimizerState& optimizer = state.optimizer.emplace();
  optimizer.type = "SGD";
  optimizer.groups = {{{"lr", 0.5}}};
  optimizer.parameters["weight"] = {0, {}, {{"momentum_buffer", momentum}}};
  state.generators["cpu"] = at::full({4}, 7, at::TensorOptions(at::kByte));
  state.metadata["epoch"] = "2";
  return state;
}

TEST(StateCopyTest, DoesNotChangeWithTheState) {
  const at::Tensor weight = at::ones({2, 3}), momentum = at::full({2, 3}, 5);
  StateCopy copy;
  const RunState& copied = copy.update(state_of(weight, momentum));
  weight.zero_();
  momentum.zero_();
  testing::expect_equal(copied,
                        state_of(at::ones({2, 3}), at::full({2, 3}, 5)));
}

TEST(StateCopyTest, UsesItsMemoryAgainUnlessTheShapeDiffers) {
  StateCopy copy;
  const auto address = [&](int64_t rows, at::ScalarType type) {
    const at::Tensor some = at::ones({rows, 2}, type);
    const RunState& copied = copy.update(state_of(some, some));
    return std::pair(copied.model["weight"].data_ptr(),
                     copied.optimizer->parameters.at("weight")
                         .tensors.at("momentum_buffer")
                         .data_ptr());
  };
  const auto first = address(3, at::kFloat);
  EXPECT_NE(first.first, first.second);
  EXPECT_EQ(address(3, at::kFloat), first);
  EXPECT_EQ(copy.update(state_of(at::ones({4, 2}), at::ones({3, 2})))
                .model["weight"]
                .sizes(),
            at::IntArrayRef({4, 2}));
  address(3, at::kHalf);
  EXPECT_EQ(copy.update(state_of(at::ones({3, 2}), at::ones({3, 2})))
                .model["weight"]
                .scalar_type(),
            at::kFloat);
}

TEST(StateCopyTest, IsDenseAlsoOfATransposedTensor) {
  const at::Tensor weight = at::tensor({1., 2., 3., 4., 5., 6.}).view({2, 3});
  StateCopy copy;
  const at::Tensor copied =
      copy.update(state_of(weight.t(), weight)).model["weight"];
  EXPECT_TRUE(copied.is_contiguous());
  EXPECT_TRUE(at::equal(copied, weight.t()));
}

TEST(StateCopyTest, TakesTensorsWithoutValuesAsTheyAre) {
  const at::Tensor meta = at::empty({2}, at::TensorOptions(at::kMeta));
  StateCopy copy;
  const RunState& copied = copy.update(state_of(meta, at::Tensor()));
  EXPECT_TRUE(copied.model["weight"].is_meta());
  EXPECT_FALSE(copied.optimizer->parameters.at("weight")
                   .tensors.at("momentum_buffer")
                   .defined());
}

}  // namespace
}  // namespace gpipe::internal
