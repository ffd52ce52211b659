#include "models/exported/operators.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::exported {

namespace {

c10::IValue compute(const std::string& target, const c10::IValue& a,
                    const c10::IValue& b = int64_t{0}) {
  return find_operation(target)->compute(a, b);
}

TEST(ArithmeticTest, IntegersStayIntegers) {
  EXPECT_EQ(compute("_operator.mul", 6, 7).toInt(), 42);
  EXPECT_EQ(compute("_operator.pow", 2, 62).toInt(), int64_t{1} << 62);
  EXPECT_EQ(compute("_operator.pow", 2, -1).toDouble(), 0.5);
  EXPECT_EQ(compute("_operator.truediv", 7, 2).toDouble(), 3.5);
  EXPECT_EQ(compute("torch.sym_float", 3).toDouble(), 3.0);
  EXPECT_EQ(compute("torch.sym_max", 3, 5).toInt(), 5);
  EXPECT_EQ(compute("_operator.add", true, 1).toInt(), 2);
}

TEST(ArithmeticTest, DivisionsRoundDownAsInPython) {
  const int64_t expected[][4] = {
      {7, 2, 3, 1}, {-7, 2, -4, 1}, {7, -2, -4, -1}, {-7, -2, 3, -1}};
  for (const auto& [a, b, quotient, rest] : expected) {
    EXPECT_EQ(compute("_operator.floordiv", a, b).toInt(), quotient);
    EXPECT_EQ(compute("_operator.mod", a, b).toInt(), rest);
    EXPECT_EQ(compute("_operator.mod", double(a), b).toDouble(), rest);
  }
  EXPECT_EQ(compute("math.ceil", 2.25).toInt(), 3);
  EXPECT_EQ(compute("math.floor", -2.25).toInt(), -3);
  EXPECT_EQ(compute("torch.sym_int", -2.75).toInt(), -2);
}

TEST(ArithmeticTest, ComparisonsGiveTruthValues) {
  EXPECT_TRUE(compute("_operator.ge", 2, 2.0).toBool());
  EXPECT_FALSE(compute("_operator.lt", 2, 2).toBool());
  EXPECT_TRUE(compute("torch.sym_not", false).toBool());
  EXPECT_EQ(compute("_operator.lshift", 3, 2).toInt(), 12);
  EXPECT_EQ(compute("_operator.lshift", 0, 64).toInt(), 0);
  EXPECT_EQ(compute("_operator.rshift", -12, 2).toInt(), -3);
  EXPECT_EQ(compute("_operator.rshift", -12, 64).toInt(), -1);
  EXPECT_FALSE(compute("_operator.and_", true, false).toBool());
}

TEST(ArithmeticTest, AChoiceHasThreeOperands) {
  const Operation choice = *find_operation("torch.sym_ite");
  EXPECT_EQ(choice.operands, 3);
  EXPECT_EQ(result_of(choice, {true, 7, 2.5}).toInt(), 7);
  EXPECT_EQ(result_of(choice, {false, 7, 2.5}).toDouble(), 2.5);
}

TEST(ArithmeticTest, WhatHasNoResultThrows) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const int64_t least = std::numeric_limits<int64_t>::min();
  EXPECT_THROW(compute("_operator.floordiv", 1, 0), c10::ValueError);
  EXPECT_THROW(compute("_operator.mod", 1, 0), c10::ValueError);
  EXPECT_THROW(compute("_operator.truediv", 1, 0), c10::ValueError);
  EXPECT_THROW(compute("_operator.mul", most, 2), c10::ValueError);
  EXPECT_THROW(compute("_operator.floordiv", least, -1), c10::ValueError);
  EXPECT_THROW(compute("_operator.lshift", 1, 64), c10::ValueError);
  EXPECT_THROW(compute("_operator.lshift", 1, -1), c10::ValueError);
  EXPECT_THROW(compute("_operator.rshift", 1, -1), c10::ValueError);
  EXPECT_EQ(compute("_operator.mod", least, -1).toInt(), 0);
  EXPECT_THROW(compute("torch.sym_int", 1e300), c10::ValueError);
  EXPECT_FALSE(find_operation("_operator.matmul"));
}

using Places = std::vector<std::size_t>;

const c10::FunctionSchema& schema_of(const std::string& target) {
  return find_operator(target)->schema();
}

// Returns a node of `target` after all arguments have been noted. Argument
// number k is the value 10 + k if its name is in `values`, `constant` if it is
// `constant_name`, else the schema's default or none.
Node noted(const std::string& target, const std::vector<std::string>& values,
           const std::string& constant_name, const c10::IValue& constant) {
  Node node;
  node.op = find_operator(target);
  int place = 0;
  for (const c10::Argument& formal : node.op->schema().arguments()) {
    Argument argument;
    for (const std::string& each : values) {
      if (each != formal.name()) continue;
      argument.kind = Argument::Kind::kValue;
      argument.elements.push_back({10 + place, 0});
    }
    if (formal.name() == constant_name) argument.constant = constant;
    note_argument(node, formal, argument);
    node.arguments.push_back(argument);
    ++place;
  }
  note_operator(node);
  return node;
}

TEST(SqueezeTest, RowsAreKeptAlsoIfThereIsOne) {
  const std::vector<Extent> sizes = {
      {0, 1}, {Extent::kNone, 3}, {Extent::kNone, 1}, {Extent::kNone, 1}};
  const auto squeezed = [&](const std::string& target,
                            const c10::IValue& dims) {
    Node node = noted(target, {"self"}, dims.isNone() ? "" : "dim", dims);
    node.target = target;
    squeeze_fixed_sizes(node, sizes);
    torch::jit::Stack stack{at::ones({1, 3, 1, 1})};
    for (std::size_t k = 1; k < node.arguments.size(); ++k) {
      stack.push_back(node.arguments[k].constant);
    }
    node.op->callBoxed(stack);
    return stack[0].toTensor().sizes().vec();
  };
  using Sizes = std::vector<int64_t>;
  for (const std::string name : {"squeeze.", "squeeze_."}) {
    const std::string target = "torch.ops.aten." + name;
    EXPECT_EQ(squeezed(target + "default", {}), Sizes({1, 3})) << name;
    EXPECT_EQ(squeezed(target + "dim", 0), Sizes({1, 3, 1, 1})) << name;
    EXPECT_EQ(squeezed(target + "dim", -1), Sizes({1, 3, 1})) << name;
    EXPECT_EQ(squeezed(target + "dims", Sizes({0, 2})), Sizes({1, 3, 1}))
        << name;
  }
}

TEST(OperatorSchemaTest, OperatorsAreFoundByTheirTargets) {
  EXPECT_TRUE(is_operator("torch.ops.aten.add.Tensor"));
  EXPECT_FALSE(is_operator("_operator.add"));
  EXPECT_FALSE(is_operator("torch.sym_float"));
  const auto add = find_operator("torch.ops.aten.add.Tensor");
  ASSERT_TRUE(add);
  EXPECT_EQ(add->operator_name().name, "aten::add");
  EXPECT_EQ(add->operator_name().overload_name, "Tensor");
  const auto linear = find_operator("torch.ops.aten.linear.default");
  ASSERT_TRUE(linear);
  EXPECT_EQ(linear->operator_name().overload_name, "");
  for (const char* each :
       {"torch.ops.aten.add.Nothing", "torch.ops.my.op.default",
        "torch.ops.aten.add", "torch.ops.aten", "torch.ops."}) {
    EXPECT_FALSE(find_operator(each)) << each;
  }
}

TEST(OperatorSchemaTest, RowsOfGroupsAreMultipliedByAMatrixEach) {
  const auto op =
      find_operator("torch.ops.transformers.grouped_mm_fallback.default");
  ASSERT_TRUE(op);
  EXPECT_EQ(op->schema().arguments()[2].name(), "offs");
  const auto product = [&](const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& ends) {
    std::vector<c10::IValue> stack = {input, weight, ends};
    op->callBoxed(stack);
    return stack[0].toTensor();
  };
  const at::Tensor input =
      at::arange(8, at::kDouble).view({4, 2}).requires_grad_();
  const at::Tensor weight =
      at::arange(18, at::kDouble).view({3, 3, 2}).requires_grad_();
  // Rows 0 and 1, none, and row 2. Row 3 is in no group.
  const at::Tensor ends = at::tensor({2, 2, 3}, at::kInt);
  const at::Tensor result = product(input, weight.transpose(1, 2), ends);
  const at::Tensor expected =
      at::cat({at::mm(input.slice(0, 0, 2), weight[0].t()),
               at::mm(input.slice(0, 2, 3), weight[2].t()),
               at::zeros({1, 3}, at::kDouble)});
  EXPECT_TRUE(at::equal(result, expected));
  const at::Tensor factor = at::arange(12, at::kDouble).view({4, 3});
  const auto grads = [&](const at::Tensor& output) {
    return torch::autograd::grad({(output * factor).sum()}, {input, weight});
  };
  const auto found = grads(result), wanted = grads(expected);
  EXPECT_TRUE(at::equal(found[0], wanted[0]));
  EXPECT_TRUE(at::equal(found[1], wanted[1]));

  const at::Tensor meta =
      product(input.to(at::kMeta), weight.to(at::kMeta).transpose(1, 2),
              ends.to(at::kMeta));
  EXPECT_EQ(meta.sizes(), at::IntArrayRef({4, 3}));
}

TEST(OperatorSchemaTest, ResultsShareTheMemoryThatTheSchemaSays) {
  EXPECT_EQ(shared_arguments(schema_of("torch.ops.aten.add.Tensor"), 0),
            Places());
  EXPECT_EQ(shared_arguments(schema_of("torch.ops.aten.view.default"), 0),
            Places{0});
  EXPECT_EQ(shared_arguments(schema_of("torch.ops.aten.add_.Tensor"), 0),
            Places{0});
  // The elements of a list of views.
  EXPECT_EQ(shared_arguments(schema_of("torch.ops.aten.split.Tensor"), 0),
            Places{0});
  EXPECT_EQ(shared_arguments(schema_of("torch.ops.aten.add.out"), 0),
            Places{3});
}

TEST(OperatorSchemaTest, SomeOperatorsReturnTheirArgumentWithoutSayingSo) {
  const auto alias_of = [](const std::string& name, const std::string& tensor) {
    return undeclared_alias(noted("torch.ops.aten." + name, {tensor}, "", {}));
  };
  for (const char* each :
       {"type_as.default", "atleast_3d.default", "sum_to_size.default",
        "unsafe_chunk.default", "unsafe_split.Tensor", "_unsafe_view.default",
        "conj_physical.default"}) {
    EXPECT_EQ(alias_of(each, "self"), 0u) << each;
  }
  EXPECT_EQ(alias_of("relu.default", "self"), std::nullopt);
  EXPECT_EQ(alias_of("linear.default", "input"), std::nullopt);
  // One operand only.
  EXPECT_EQ(alias_of("einsum.default", "tensors"), 1u);
  Node two = noted("torch.ops.aten.einsum.default", {"tensors"}, "", {});
  two.arguments[1].elements.push_back({20, 0});
  EXPECT_EQ(undeclared_alias(two), std::nullopt);
  // Element by element.
  Node list =
      noted("torch.ops.aten.broadcast_tensors.default", {"tensors"}, "", {});
  list.arguments[0].elements.push_back({20, 0});
  EXPECT_EQ(undeclared_alias(list), 0u);
}

TEST(OperatorSchemaTest, ADropoutThatDropsNothingReturnsItsArgument) {
  for (const char* each : {"dropout", "alpha_dropout", "feature_dropout",
                           "feature_alpha_dropout"}) {
    const std::string target =
        std::string("torch.ops.aten.") + each + ".default";
    const auto alias_with = [&](double rate, bool training) {
      Node node = noted(target, {"input"}, "train", training);
      node.arguments[1].constant = rate;
      return undeclared_alias(node);
    };
    EXPECT_EQ(alias_with(0.5, true), std::nullopt) << each;
    EXPECT_EQ(alias_with(0.5, false), 0u) << each;
    EXPECT_EQ(alias_with(0.0, true), 0u) << each;
  }
}

// What this LibTorch does with tensors that have the right form already.
TEST(OperatorSchemaTest, OperatorsThatReturnTheirArgumentAreListed) {
  const at::Tensor x = at::ones({2, 3}), y = at::ones({3});
  const std::vector<std::pair<std::string, at::Tensor>> found = {
      {"type_as", x.type_as(y)},
      {"dropout", at::dropout(x, 0, true)},
      {"broadcast_tensors", at::broadcast_tensors({x, y})[1]},
      {"meshgrid", at::meshgrid({y, x[0]}, "ij")[0]},
      {"atleast_3d", at::atleast_3d(x)},
      {"einsum", at::einsum("ij->ji", {x})},
      {"sum_to_size", x.sum_to_size({2, 3})},
      {"conj_physical", at::conj_physical(x)}};
  for (const auto& [name, result] : found) {
    const at::Tensor& from =
        name == "broadcast_tensors" || name == "meshgrid" ? y : x;
    EXPECT_TRUE(result.is_alias_of(from)) << name;
  }
  EXPECT_FALSE(at::einsum("ij,j->ij", {x, y}).is_alias_of(x));
}

TEST(OperatorSchemaTest, OperatorsInPlaceWriteToTheirArgument) {
  EXPECT_EQ(
      noted("torch.ops.aten.add_.Tensor", {"self", "other"}, "", {}).writes,
      std::vector<ValueId>{10});
  EXPECT_EQ(
      noted("torch.ops.aten.add.Tensor", {"self", "other"}, "", {}).writes,
      std::vector<ValueId>());
}

TEST(OperatorSchemaTest, NormsWriteTheirStatisticsInTrainingOnly) {
  // input, weight, bias, running_mean, running_var, flag.
  const std::string names[][2] = {
      {"torch.ops.aten.batch_norm.default", "training"},
      {"torch.ops.aten.instance_norm.default", "use_input_stats"}};
  for (const auto& [target, flag] : names) {
    const Node training =
        noted(target, {"input", "running_mean", "running_var"}, flag, true);
    EXPECT_EQ(training.writes, (std::vector<ValueId>{13, 14})) << target;
    EXPECT_EQ(training.running_mean, 13);
    EXPECT_EQ(training.running_var, 14);
    EXPECT_EQ(training.training_flags, std::vector<int>{5});
    const Node eval =
        noted(target, {"input", "running_mean", "running_var"}, flag, false);
    EXPECT_EQ(eval.writes, std::vector<ValueId>()) << target;
    EXPECT_EQ(eval.running_mean, kNoValue);
    EXPECT_EQ(eval.running_var, kNoValue);
    EXPECT_EQ(eval.training_flags, std::vector<int>());
    const Node without = noted(target, {"input"}, flag, true);
    EXPECT_EQ(without.writes, std::vector<ValueId>()) << target;
    EXPECT_EQ(without.training_flags, std::vector<int>());
  }
}

TEST(OperatorSchemaTest, DropoutRatesAreNoted) {
  const std::string attention =
      "torch.ops.aten.scaled_dot_product_attention.default";
  const auto place = schema_of(attention).argumentIndexWithName("dropout_p");
  ASSERT_TRUE(place);
  EXPECT_EQ(noted(attention, {"query"}, "dropout_p", 0.25).dropout_rates,
            std::vector<int>{*place});
  EXPECT_EQ(noted("torch.ops.aten.dropout.default", {"input"}, "train", true)
                .training_flags,
            std::vector<int>{2});
}

TEST(OperatorSchemaTest, AnOperatorWithItsTrainingFlagOffIsNotRandom) {
  const std::string dropout = "torch.ops.aten.dropout.default";
  EXPECT_TRUE(noted(dropout, {"input"}, "train", true).random);
  const Node off = noted(dropout, {"input"}, "train", false);
  EXPECT_FALSE(off.random);
  EXPECT_EQ(off.training_flags, std::vector<int>());
  EXPECT_TRUE(
      noted("torch.ops.aten.rand_like.default", {"self"}, "", {}).random);
  EXPECT_FALSE(noted("torch.ops.aten.relu.default", {"self"}, "", {}).random);
}

TEST(OperatorSchemaTest, OnlySymSizeReadsASize) {
  EXPECT_TRUE(noted("torch.ops.aten.sym_size.int", {"self"}, "dim", 0).is_size);
  EXPECT_FALSE(noted("torch.ops.aten.relu.default", {"self"}, "", {}).is_size);
}

TEST(OperatorSchemaTest, CudnnIsEnabledWhateverTheExportSaid) {
  const Node node = noted("torch.ops.aten.batch_norm.default", {"input"},
                          "cudnn_enabled", false);
  EXPECT_TRUE(node.arguments[8].constant.toBool());
}

}  // namespace

}  // namespace gpipe::exported
