#include "training/program/token_inputs.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::train_program {
namespace {

using Sizes = std::vector<std::optional<int64_t>>;

ExportedTensor tensor(const std::string& name, c10::ScalarType dtype,
                      const Sizes& sizes, int64_t largest = 8) {
  ExportedTensor result{name, dtype, sizes, "", {}};
  for (const auto& each : sizes) {
    result.largest.push_back(each.value_or(largest));
  }
  return result;
}

const Sizes kAny = {std::nullopt, std::nullopt};

ExportedSignature signature(std::vector<ExportedTensor> inputs) {
  ExportedSignature result;
  result.inputs = std::move(inputs);
  result.outputs = {
      tensor("logits", at::kFloat, {std::nullopt, std::nullopt, 5})};
  return result;
}

ExportedSignature with_cache(std::optional<int64_t> tokens) {
  ExportedSignature result =
      signature({tensor("input_ids", at::kLong, {1, tokens}),
                 tensor("cache_position", at::kLong, {tokens})});
  result.state = {tensor("length", at::kLong, {}),
                  tensor("keys", at::kFloat, {1, 2, 12, 4}),
                  tensor("values", at::kFloat, {1, 2, 10, 4})};
  return result;
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_EQ(found.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(found, expected)) << found;
}

at::Tensor row(const std::vector<int64_t>& values) {
  return at::tensor(values).unsqueeze(0);
}

TEST(TokenInputsTest, AWindowOfAnyLengthHasAllTokens) {
  const TokenInputs inputs(signature({tensor("ids", at::kLong, kAny)}));
  EXPECT_FALSE(inputs.has_cache());
  EXPECT_EQ(inputs.limit(), 8);
  const auto call = inputs.next({4, 2, 3}, 2);
  expect_equal(call.sample.input, row({4, 2, 3}));
  EXPECT_TRUE(call.sample.further.empty());
  EXPECT_EQ(call.tokens, 3);
  EXPECT_EQ(call.last, 2);
}

TEST(TokenInputsTest, AWindowOfAFixedLengthIsPaddedAtItsEnd) {
  const TokenInputs inputs(
      signature({tensor("ids", at::kLong, {1, 4}),
                 tensor("position_ids", at::kLong, {1, 4}),
                 tensor("attention_mask", at::kLong, {1, 4})}));
  EXPECT_EQ(inputs.limit(), 4);
  const auto call = inputs.next({4, 2}, 0);
  expect_equal(call.sample.input, row({4, 2, 0, 0}));
  expect_equal(call.sample.further.at(0), row({0, 1, 2, 3}));
  expect_equal(call.sample.further.at(1), row({1, 1, 0, 0}));
  EXPECT_EQ(call.tokens, 2);
  EXPECT_EQ(call.last, 1);
}

TEST(TokenInputsTest, AMaskOfFourDimensionsIsCausal) {
  for (const c10::ScalarType dtype : {at::kBool, at::kFloat}) {
    const TokenInputs inputs(
        signature({tensor("ids", at::kLong, kAny),
                   tensor("attention_mask", dtype,
                          {std::nullopt, 1, std::nullopt, std::nullopt})}));
    const at::Tensor mask = inputs.next({4, 2}, 0).sample.further.at(0);
    const at::Tensor floats =
        at::tensor({0.f, -INFINITY, 0.f, 0.f}).view({1, 1, 2, 2});
    expect_equal(mask, dtype == at::kBool ? floats == 0 : floats);
  }
}

TEST(TokenInputsTest, AModelWithACacheReadsEachTokenOnce) {
  const TokenInputs one(with_cache(1));
  EXPECT_TRUE(one.has_cache());
  EXPECT_EQ(one.limit(), 10);  // of the shorter cache
  auto call = one.next({4, 2, 3}, 1);
  expect_equal(call.sample.input, row({2}));
  expect_equal(call.sample.further.at(0), at::tensor({int64_t{1}}));
  EXPECT_EQ(call.tokens, 2);
  EXPECT_EQ(call.last, 0);

  const TokenInputs any(with_cache(std::nullopt));
  call = any.next({4, 2, 3}, 1);
  expect_equal(call.sample.input, row({2, 3}));
  expect_equal(call.sample.further.at(0), at::tensor({1, 2}, at::kLong));
  EXPECT_EQ(call.tokens, 3);
  EXPECT_EQ(call.last, 1);
}

TEST(TokenInputsTest, AModelOfModelsTakesUpToItsWindow) {
  const TokenInputs inputs(3);
  EXPECT_EQ(inputs.limit(), 3);
  expect_equal(inputs.next({1, 2, 0}, 0).sample.input, row({1, 2, 0}));
}

template <typename Use>
std::string error_of(const Use& use) {
  try {
    use();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(TokenInputsTest, ErrorsHaveTheNumbers) {
  const auto expect = [](const ExportedSignature& wrong,
                         const std::string& part) {
    const std::string text = error_of([&] { TokenInputs{wrong}; });
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(signature({tensor("x", at::kFloat, kAny)}), "knows no value for x");
  expect(signature({tensor("a", at::kLong, kAny),
                    tensor("type_ids", at::kLong, kAny)}),
         "knows no value for type_ids");
  expect(signature({tensor("cache_position", at::kLong, {std::nullopt})}),
         "generation needs tokens");
  expect(signature({tensor("ids", at::kLong, {4, std::nullopt})}),
         "export it for 1 row");
  expect(with_cache(3), "the program takes 3 tokens");
  ExportedSignature classes = signature({tensor("ids", at::kLong, kAny)});
  classes.outputs = {tensor("classes", at::kFloat, {std::nullopt, 5})};
  expect(classes, "generation needs tokens");
  EXPECT_NE(error_of([] {
              TokenInputs(2).next({1, 2, 3}, 0);
            }).find("the sequence has 3 tokens, but the model takes at most 2"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe::train_program
