#include "gpipe/sequential.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

std::vector<std::string> names_of(const Sequential& model) {
  return model->named_children().keys();
}

Sequential block() {
  return stack({{"linear", Linear(4, 4)}, {"relu", ReLU()}});
}

TEST(SequentialTest, StacksPartsUnderTheirNames) {
  const Linear head(4, 1);
  Sequential model =
      stack({{"stem", Linear(2, 4)}, {"body", block()}, {"head", head}});
  EXPECT_THAT(names_of(model),
              ElementsAre("stem", "body_linear", "body_relu", "head"));
  EXPECT_EQ(model->ptr(3), head.ptr());
  EXPECT_THAT(model->forward(torch::ones({3, 2})).sizes(), ElementsAre(3, 1));
}

TEST(SequentialTest, RepeatsWhatAFunctionMakes) {
  std::vector<int64_t> calls;
  const Sequential model = repeat(3, [&](int64_t k) {
    calls.push_back(k);
    return block();
  });
  EXPECT_THAT(calls, ElementsAre(0, 1, 2));
  EXPECT_THAT(names_of(model), ElementsAre("0_linear", "0_relu", "1_linear",
                                           "1_relu", "2_linear", "2_relu"));
  EXPECT_EQ(model->parameters().size(), 6);
  EXPECT_FALSE(model->parameters()[0].equal(model->parameters()[2]));
  EXPECT_THAT(names_of(repeat(2, [](int64_t) { return ReLU(); })),
              ElementsAre("0", "1"));
  EXPECT_THAT(names_of(repeat(0, [](int64_t) { return ReLU(); })), IsEmpty());
}

TEST(SequentialTest, StacksAndRepeatsTogether) {
  EXPECT_THAT(names_of(stack({{"a", repeat(2,
                                           [](int64_t) {
                                             return stack({{"b", block()}});
                                           })},
                              {"c", ReLU()}})),
              ElementsAre("a_0_b_linear", "a_0_b_relu", "a_1_b_linear",
                          "a_1_b_relu", "c"));
}

TEST(SequentialTest, RefusesTwoLayersOfOneNameAndParts) {
  EXPECT_THAT(
      [] {
        stack({{"a", ReLU()}, {"a", ReLU()}});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("'a'")));
  EXPECT_THAT(
      [] {
        stack({{"a_linear", ReLU()}, {"a", block()}});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("'a_linear'")));
  EXPECT_THAT(
      [] {
        stack({{"nothing", Sequential(nullptr)}});
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("'nothing' is null")));
  EXPECT_THAT(
      [] {
        stack({{"nothing", std::shared_ptr<torch::nn::ReLUImpl>()}});
      },
      ThrowsMessage<c10::Error>(HasSubstr("'nothing' is null")));
  EXPECT_THAT([] { repeat(-1, [](int64_t) { return ReLU(); }); },
              ThrowsMessage<c10::ValueError>(HasSubstr("-1")));
}

// ---- flatten

Nested nested_block() {
  Nested block;
  block->push_back("linear", Linear(4, 4));
  block->push_back("relu", ReLU());
  return block;
}

Sequential nested_model() {
  Nested outer;
  outer->push_back("first", nested_block());
  outer->push_back("second", nested_block());
  Sequential model;
  model->push_back("stem", Linear(2, 4));
  model->push_back("body", outer);
  model->push_back("head", Linear(4, 1));
  return model;
}

TEST(SequentialTest, FlattensAtAnyDepthWithoutChangingTheResult) {
  Sequential model = nested_model();
  Sequential flat = flatten(model);
  EXPECT_THAT(names_of(flat),
              ElementsAre("stem", "body_first_linear", "body_first_relu",
                          "body_second_linear", "body_second_relu", "head"));
  const auto parameters = model->parameters();
  ASSERT_EQ(flat->parameters().size(), parameters.size());
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    EXPECT_TRUE(flat->parameters()[k].is_same(parameters[k]));
  }
  const Tensor x = torch::randn({3, 2});
  EXPECT_TRUE(flat->forward(x).equal(model->forward(x)));
  // A flat model can be cut anywhere.
  GPipe pipeline(flat, GPipeOptions({2, 3, 1}).devices(
                           std::vector<torch::Device>(3, torch::kCPU)));
  EXPECT_TRUE(pipeline->forward(x).equal(flat->forward(x)));
}

TEST(SequentialTest, FlattensAFlatModelToItself) {
  const Sequential model = block();
  EXPECT_EQ(names_of(flatten(model)), names_of(model));
  EXPECT_THAT(names_of(flatten(Sequential())), IsEmpty());
}

TEST(SequentialTest, KeepsModes) {
  Sequential model = nested_model();
  model->eval();
  const Sequential flat = flatten(model);
  EXPECT_FALSE(flat->is_training());
  for (const auto& layer : flat->children()) EXPECT_FALSE(layer->is_training());
  model->train();
  model->ptr(0)->eval();
  EXPECT_FALSE(flatten(model)->ptr(0)->is_training());
}

// A Sequential whose forward() adds something, like a residual block.
struct ResidualImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  Tensor forward(Tensor x) { return x + SequentialImpl::forward(x); }
};
TORCH_MODULE(Residual);

// A Sequential whose forward() adds nothing.
struct MyStackImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  Tensor forward(Tensor x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(MyStack);

TEST(SequentialTest, LeavesSequentialsThatDoMoreAsTheyAre) {
  Sequential model;
  model->push_back("residual", Residual(Linear(4, 4), ReLU()));
  model->push_back("mine", MyStack(Linear(4, 4), ReLU()));
  EXPECT_THAT(names_of(flatten(model)), ElementsAre("residual", "mine"));
  Sequential flat = flatten<MyStackImpl>(model);
  EXPECT_THAT(names_of(flat), ElementsAre("residual", "mine_0", "mine_1"));
  const Tensor x = torch::randn({3, 4});
  EXPECT_TRUE(flat->forward(x).equal(model->forward(x)));
}

TEST(SequentialTest, RefusesToFlattenToOneNameOrNothing) {
  Sequential model = nested_model();
  model->push_back("body_first_relu", ReLU());
  EXPECT_THAT([&] { flatten(model); },
              ThrowsMessage<c10::ValueError>(HasSubstr("'body_first_relu'")));
  EXPECT_THAT([] { flatten(Sequential(nullptr)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("null")));
}

TEST(SequentialTest, ClonesNested) {
  const Nested original = nested_block();
  const auto copy = std::dynamic_pointer_cast<NestedImpl>(original->clone());
  ASSERT_TRUE(copy);
  const Tensor x = torch::randn({3, 4});
  EXPECT_TRUE(copy->forward(x).equal(original.ptr()->forward(x)));
  EXPECT_FALSE(copy->parameters()[0].is_same(original->parameters()[0]));
  std::ostringstream text;
  text << *copy;
  EXPECT_THAT(text.str(), HasSubstr("(linear): torch::nn::Linear"));
}

}  // namespace
}  // namespace gpipe
