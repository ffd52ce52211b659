#include "gpipe/runtime/cell/value.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Tensors = std::vector<Tensor>;
using Single = std::tuple<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using torch::Tensor;

TEST(Value, HoldsATensor) {
  const Tensor x = at::ones({2});
  Value value = Value::wrap(x);
  EXPECT_EQ(value.kind(), Value::Kind::kTensor);
  EXPECT_EQ(value.describe(), "a tensor");
  ASSERT_EQ(value.tensors().size(), 1u);
  EXPECT_TRUE(std::move(value).unwrap<Tensor>().is_same(x));
}

TEST(Value, HoldsAVectorOfAnyLength) {
  for (const std::size_t size : {0, 1, 9}) {
    Value value = Value::wrap(Tensors(size));
    EXPECT_EQ(value.kind(), Value::Kind::kVector);
    EXPECT_EQ(value.describe(), "a vector of " + std::to_string(size) +
                                    (size == 1 ? " tensor" : " tensors"));
    EXPECT_EQ(std::move(value).unwrap<Tensors>().size(), size);
  }
}

TEST(Value, HoldsATupleInOrder) {
  const Tensor a = at::ones({2}), b = at::ones({3});
  Value value = Value::wrap(Pair(a, b));
  EXPECT_EQ(value.kind(), Value::Kind::kTuple);
  EXPECT_EQ(value.describe(), "a tuple of 2 tensors");
  const auto [first, second] = std::move(value).unwrap<Pair>();
  EXPECT_TRUE(first.is_same(a));
  EXPECT_TRUE(second.is_same(b));
}

TEST(Value, KeepsNoReferenceToWhatItGaveBack) {
  Tensor x = at::ones({2});
  Value value = Value::wrap(std::move(x));
  EXPECT_EQ(std::move(value).unwrap<Tensor>().use_count(), 1);
}

TEST(Value, TellsATensorFromATupleAndAVectorOfOne) {
  const Tensor x = at::ones({2});
  EXPECT_THAT(error_of([&] { Value::wrap(x).unwrap<Single>(); }),
              StartsWith("c10::TypeError: the value is a tensor, but "));
  EXPECT_THAT(error_of([&] { Value::wrap(Single(x)).unwrap<Tensor>(); }),
              StartsWith("c10::TypeError: the value is a tuple of 1 tensor"));
  EXPECT_THAT(error_of([&] { Value::wrap(Tensors{x}).unwrap<Single>(); }),
              StartsWith("c10::TypeError: the value is a vector of 1 tensor"));
  EXPECT_THAT(error_of([&] { Value::wrap(Pair(x, x)).unwrap<Single>(); }),
              HasSubstr("was asked for; name the type, T, in the call: "
                        "forward<T>(), train_step<T>()"));
}

TEST(Value, RefusesEverythingElse) {
  const auto error = error_of([] { Value::wrap(std::string("hello")); });
  EXPECT_THAT(error, StartsWith("c10::TypeError: expected a torch::Tensor, a "
                                "std::vector<torch::Tensor> or a std::tuple of "
                                "1 to 8 torch::Tensor, but got "));
  EXPECT_THAT(error_of([] { Value::wrap(std::tuple<>()); }),
              StartsWith("c10::TypeError: expected"));
  const Tensor x = at::ones({1});
  EXPECT_THAT(error_of([&] {
                Value::wrap(std::make_tuple(x, x, x, x, x, x, x, x, x));
              }),
              StartsWith("c10::TypeError: expected"));
  EXPECT_THAT(error_of([&] { Value::wrap(x).unwrap<int>(); }),
              HasSubstr("but got int"));
}

static_assert(std::is_same_v<PartOf<Tensor>, Tensor>);
static_assert(std::is_same_v<PartOf<Microbatches<std::vector<Tensor>>>,
                             std::vector<Tensor>>);

TEST(Batch, HoldsAWholeValue) {
  const Tensor tensor = torch::ones({2});
  Batch batch = Batch::wrap(tensor);
  EXPECT_FALSE(batch.split());
  EXPECT_EQ(batch.values().size(), 1u);
  EXPECT_TRUE(batch.whole().tensors()[0].is_same(tensor));
  EXPECT_TRUE(std::move(batch).unwrap<Tensor>().is_same(tensor));
}

TEST(Batch, OfSomethingElseIsRefusedWhereItIsRead) {
  const Batch one = Batch::wrap(7), parts = Batch::wrap(Microbatches<int>{{7}});
  EXPECT_FALSE(one.split());
  EXPECT_TRUE(parts.split());
  for (const Batch& batch : {one, parts}) {
    EXPECT_THAT(error_of([&] { batch.values(); }),
                StartsWith("c10::TypeError: expected"));
    EXPECT_THAT(error_of([&] { batch.parts(); }), HasSubstr("but got int"));
    EXPECT_THAT(error_of([&] { Batch(batch).unwrap<Tensor>(); }),
                HasSubstr("but got int"));
  }
  EXPECT_THAT(error_of([&] { one.whole(); }), HasSubstr("but got int"));
}

TEST(Batch, HoldsPartsOfAnyShapes) {
  using Pair = std::tuple<Tensor, Tensor>;
  const Tensor a = torch::ones({2}), b = torch::ones({3, 1});
  Batch batch = Batch::wrap(Microbatches<Pair>{{{a, b}, {b, a}}});
  EXPECT_TRUE(batch.split());
  EXPECT_EQ(batch.parts(), 2);
  const auto parts = std::move(batch).unwrap_parts<Pair>().parts;
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(std::get<0>(parts[1]).is_same(b));
  EXPECT_TRUE(std::get<1>(parts[1]).is_same(a));
}

TEST(Batch, RefusesAnotherTypeThanItHolds) {
  Batch whole = Batch::wrap(torch::ones({2}));
  EXPECT_EQ(error_of([&] {
              std::move(whole).unwrap<std::vector<Tensor>>();
            }).find("c10::TypeError"),
            0u);
}

TEST(Batch, MayHaveNoParts) {
  EXPECT_EQ(Batch::wrap(Microbatches<Tensor>()).parts(), 0);
  EXPECT_FALSE(Batch().split());
  EXPECT_TRUE(Batch().whole().tensors().empty());
}

TEST(LossFunction, KnowsByItsTypeWhetherItIsWeighted) {
  const LossFunction mean = [](Value output, Value target) {
    return (output.tensors()[0] - target.tensors()[0]).sum();
  };
  const LossFunction weighted = [](Value output, Value) {
    return WeightedLoss{output.tensors()[0].sum(), torch::tensor(4), {}};
  };
  const Value output = Value::wrap(torch::full({2}, 3.f));
  const Value target = Value::wrap(torch::ones({2}));
  EXPECT_FALSE(mean.weighted());
  EXPECT_EQ(mean(output, target).sum.item<float>(), 4);
  EXPECT_FALSE(mean(output, target).weight.defined());
  EXPECT_TRUE(weighted.weighted());
  EXPECT_EQ(weighted(output, target).weight.item<int64_t>(), 4);
}

}  // namespace
}  // namespace gpipe::internal
