#include "models/exported/control_flow.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "models/testing/files.h"

namespace gpipe::exported {
namespace {

using c10::IValue;
using IValues = std::vector<IValue>;

at::Tensor leaf(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).requires_grad_(true);
}

at::Tensor tensor(const IValue& value) { return value.toTensor(); }

std::vector<double> numbers(const at::Tensor& values) {
  const at::Tensor flat = values.detach().to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(),
          flat.const_data_ptr<double>() + flat.numel()};
}

using Numbers = std::vector<double>;

// Two branches: twice the first operand, or the sum of the squares of the
// second one, as a tensor of the same size.
IValues branch(std::size_t body, const IValues& inputs) {
  if (body == 0) return {tensor(inputs[0]) * 2};
  return {tensor(inputs[1]).square().sum().expand({2})};
}

IValues choose(const IValue& predicate, const IValues& operands) {
  return run_control(Control::kCond, {{predicate}, operands}, branch);
}

TEST(ControlFlowTest, APredicateIsATensorOrANumber) {
  const at::NoGradGuard no_grad;
  const IValues operands = {leaf({1, 2}), leaf({3, 4})};
  for (const IValue& predicate :
       {IValue(true), IValue(at::ones({1}, at::kBool)), IValue(int64_t{3})}) {
    EXPECT_EQ(numbers(tensor(choose(predicate, operands)[0])), Numbers({2, 4}));
  }
  for (const IValue& predicate : {IValue(false), IValue(at::zeros({}))}) {
    EXPECT_EQ(numbers(tensor(choose(predicate, operands)[0])),
              Numbers({25, 25}));
  }
}

TEST(ControlFlowTest, AnOperandThatTheBranchDoesNotUseHasZerosAsItsGradient) {
  const at::Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const auto step = [&](bool predicate) {
    a.mutable_grad().reset();
    b.mutable_grad().reset();
    const at::Tensor y = tensor(choose(predicate, {a, b})[0]);
    EXPECT_TRUE(y.requires_grad());
    torch::autograd::backward({y}, {at::tensor({1.0, 10.0}, at::kDouble)});
  };
  step(true);
  EXPECT_EQ(numbers(a.grad()), Numbers({2, 20}));
  EXPECT_EQ(numbers(b.grad()), Numbers({0, 0}));
  step(false);
  EXPECT_EQ(numbers(a.grad()), Numbers({0, 0}));
  EXPECT_EQ(numbers(b.grad()), Numbers({66, 88}));
}

TEST(ControlFlowTest, ResultsRequireGradIfAnOperandDoes) {
  const at::Tensor a = leaf({1, 2});
  const auto constant = [](std::size_t, const IValues&) -> IValues {
    return {at::ones({2}), at::ones({2}, at::kLong), IValue()};
  };
  const IValues results = run_control(Control::kCond, {{true}, {a}}, constant);
  EXPECT_TRUE(tensor(results[0]).requires_grad());
  EXPECT_FALSE(tensor(results[1]).requires_grad());
  EXPECT_TRUE(results[2].isNone());
  torch::autograd::backward({tensor(results[0]).sum()});
  EXPECT_EQ(numbers(a.grad()), Numbers({0, 0}));

  EXPECT_FALSE(
      tensor(run_control(Control::kCond, {{true}, {a.detach()}}, constant)[0])
          .requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(tensor(run_control(Control::kCond, {{true}, {a}}, constant)[0])
                   .requires_grad());
}

TEST(ControlFlowTest, AResultMayChangeInPlaceIfNothingSavedIt) {
  const at::Tensor a = leaf({1, 2});
  const auto doubled = [](std::size_t, const IValues& inputs) -> IValues {
    return {tensor(inputs[0]) * 2};
  };
  const at::Tensor y =
      tensor(run_control(Control::kCond, {{true}, {a}}, doubled)[0]);
  y.mul_(3);
  torch::autograd::backward({y.sum()});
  EXPECT_EQ(numbers(a.grad()), Numbers({6, 6}));
}

// Multiplies by a constant until the value is at least 20.
IValues grow(std::size_t body, const IValues& inputs) {
  if (body == 0) return {tensor(inputs[1]).lt(20).all()};
  return {inputs[0].toInt() + 1, tensor(inputs[1]) * tensor(inputs[2])};
}

TEST(ControlFlowTest, ALoopRunsAsLongAsItsConditionHolds) {
  const at::Tensor start = leaf({3}), factor = leaf({2});
  const IValues results =
      run_control(Control::kWhile, {{int64_t{0}, start}, {factor}}, grow);
  EXPECT_EQ(results[0].toInt(), 3);
  EXPECT_EQ(numbers(tensor(results[1])), Numbers({24}));
  torch::autograd::backward({tensor(results[1])});
  EXPECT_EQ(numbers(start.grad()), Numbers({8}));  // factor ^ 3
  EXPECT_EQ(numbers(factor.grad()), Numbers({3 * 3 * 4}));
}

TEST(ControlFlowTest, ALoopThatDoesNotRunCopiesItsInputs) {
  const at::Tensor start = leaf({30}), factor = leaf({2});
  const IValues results =
      run_control(Control::kWhile, {{int64_t{0}, start}, {factor}}, grow);
  EXPECT_EQ(results[0].toInt(), 0);
  EXPECT_EQ(numbers(tensor(results[1])), Numbers({30}));
  EXPECT_FALSE(tensor(results[1]).is_alias_of(start));
  torch::autograd::backward({tensor(results[1])});
  EXPECT_EQ(numbers(start.grad()), Numbers({1}));
  EXPECT_EQ(numbers(factor.grad()), Numbers({0}));
}

// state * factor + row, which is the result of the row as well.
IValues accumulate(std::size_t, const IValues& inputs) {
  const at::Tensor state =
      tensor(inputs[0]) * tensor(inputs[2]) + tensor(inputs[1]);
  return {state, state.clone()};
}

TEST(ControlFlowTest, AScanKeepsAStateFromRowToRow) {
  const at::Tensor start = leaf({1}), factor = leaf({10});
  const at::Tensor rows =
      at::tensor({2.0, 3.0, 4.0}, at::kDouble).view({3, 1}).requires_grad_();
  const IValues results =
      run_control(Control::kScan, {{start}, {rows}, {factor}}, accumulate);
  EXPECT_EQ(numbers(tensor(results[0])), Numbers({1234}));
  EXPECT_EQ(tensor(results[1]).sizes(), at::IntArrayRef({3, 1}));
  EXPECT_EQ(numbers(tensor(results[1])), Numbers({12, 123, 1234}));
  torch::autograd::backward({tensor(results[0])});
  EXPECT_EQ(numbers(start.grad()), Numbers({1000}));
  EXPECT_EQ(numbers(rows.grad()), Numbers({100, 10, 1}));
  EXPECT_EQ(numbers(factor.grad()), Numbers({123 + 10 * (12 + 10 * 1)}));
}

TEST(ControlFlowTest, AMapStacksTheResultsOfAllRows) {
  const at::Tensor factor = leaf({10, 20}), unused = leaf({1});
  const at::Tensor rows =
      at::arange(6, at::kDouble).view({3, 2}).requires_grad_();
  const IValues results =
      run_control(Control::kMap, {{rows}, {factor, unused}},
                  [](std::size_t, const IValues& inputs) -> IValues {
                    return {tensor(inputs[0]) * tensor(inputs[1]), IValue()};
                  });
  EXPECT_EQ(numbers(tensor(results[0])), Numbers({0, 20, 20, 60, 40, 100}));
  EXPECT_TRUE(results[1].isNone());
  torch::autograd::backward({tensor(results[0]).sum()});
  EXPECT_EQ(numbers(rows.grad()), Numbers({10, 20, 10, 20, 10, 20}));
  EXPECT_EQ(numbers(factor.grad()), Numbers({6, 9}));
  EXPECT_EQ(numbers(unused.grad()), Numbers({0}));
}

TEST(ControlFlowTest, RowsMustBeThereAndAsManyInAllTensors) {
  const auto scan = [](const IValues& tensors) {
    return testing::value_error_of([&] {
      run_control(Control::kScan, {{at::zeros({1})}, tensors, {}}, accumulate);
    });
  };
  EXPECT_EQ(scan({at::zeros({0, 1})}),
            "runs a graph for each row of a tensor, but the tensor has no "
            "rows");
  EXPECT_EQ(scan({at::zeros({3, 1}), at::zeros({2, 1})}),
            "runs a graph for each row of tensors of 3 and of 2 rows");
}

TEST(ControlFlowTest, TensorsWithoutValuesTakeTheFirstBranchAndOneRun) {
  const at::Tensor meta = at::zeros({2}, at::kMeta);
  int runs[2] = {0, 0};
  const auto count = [&](std::size_t body, const IValues& inputs) -> IValues {
    ++runs[body];
    return inputs;
  };
  run_control(Control::kCond, {{meta}, {meta}}, count);
  EXPECT_EQ(runs[0], 1);
  EXPECT_EQ(runs[1], 0);
  run_control(Control::kWhile, {{meta}, {}}, count);
  EXPECT_EQ(runs[0], 3);  // the condition of a loop runs before and after
  EXPECT_EQ(runs[1], 1);
}

}  // namespace
}  // namespace gpipe::exported
