#include "gpipe/distributed/channel/message.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::error_of;
using ::testing::HasSubstr;
using Sizes = std::vector<int64_t>;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

TensorSpec defined_spec(at::ScalarType type, Sizes sizes, Sizes strides) {
  return {true, false, type, std::move(sizes), std::move(strides)};
}

// Returns the tensor that another rank receives.
Tensor received(const Tensor& sent) {
  Message message;
  message.tensors = {spec_of(sent, /*requires_grad=*/false)};
  const std::vector<uint8_t> data = encode(message);
  message = decode(data.data(), static_cast<int64_t>(data.size()));
  Tensor result = empty_like_spec(message.tensors[0]);
  Tensor bytes = bytes_of(result);
  EXPECT_EQ(bytes.numel(), message.tensors[0].bytes());
  bytes.copy_(bytes_of(sent));
  return result;
}

TEST(TensorSpec, CountsBytes) {
  EXPECT_EQ(TensorSpec().bytes(), 0);
  EXPECT_EQ(defined_spec(at::kFloat, {}, {}).bytes(), 4);
  EXPECT_EQ(defined_spec(at::kComplexDouble, {2, 3}, {3, 1}).bytes(), 96);
  EXPECT_EQ(defined_spec(at::kFloat, {2, 0}, {1, 1}).bytes(), 0);
  EXPECT_EQ(defined_spec(at::kByte, {kLargest}, {1}).bytes(), kLargest);
}

TEST(TensorSpec, HasNoBytesIfTheSizesCannotBe) {
  EXPECT_EQ(error_of([] {
              defined_spec(at::kFloat, {2, -1}, {1, 1}).bytes();
            }),
            "c10::Error: a tensor cannot have sizes [2, -1]: one of them is "
            "negative");
  EXPECT_EQ(error_of([] { defined_spec(at::kShort, {kLargest}, {1}).bytes(); }),
            "c10::Error: a tensor cannot have sizes [9223372036854775807]: "
            "their product is more than 64 bits hold");
  EXPECT_THAT(error_of([] {
                defined_spec(at::kByte, {kLargest, 0, 2}, {}).bytes();
              }),
              HasSubstr("more than 64 bits hold"));
}

TEST(Message, IsRefusedIfLibTorchCouldNotCountWithItsStrides) {
  // No element is outside, because there are none.
  EXPECT_THAT(
      error_of([] {
        check_spec(defined_spec(at::kFloat, {0, 4}, {1, int64_t{1} << 61}), 0);
      }),
      HasSubstr("and strides [1, 2305843009213693952], which do not"));
}

// LibTorch says which strides are dense, on tensors of few elements.
TEST(Message, TakesTheStridesThatLibTorchCallsDense) {
  std::mt19937 random(0);
  const auto below = [&](int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random);
  };
  const Tensor memory = at::empty({200}, at::kChar);
  int dense = 0, other = 0;
  for (int k = 0; k < 20000; ++k) {
    Sizes sizes, strides;
    for (int dims = below(5); dims > 0; --dims) {
      sizes.push_back(below(12) == 0 ? 0 : 1 + below(3));
      strides.push_back(below(2) == 0 ? below(4) : below(19));
    }
    const bool expected =
        memory.as_strided(sizes, strides).is_non_overlapping_and_dense();
    ++(expected ? dense : other);
    const std::string error = error_of(
        [&] { check_spec(defined_spec(at::kChar, sizes, strides), 0); });
    ASSERT_EQ(error.empty(), expected)
        << at::IntArrayRef(sizes) << at::IntArrayRef(strides) << error;
  }
  EXPECT_GT(dense, 5000);
  EXPECT_GT(other, 5000);
}

TEST(TensorBytes, ComeBackForEveryDtype) {
  int dtypes = 0;
  for (int k = 0; k < static_cast<int>(at::ScalarType::Undefined); ++k) {
    const auto type = static_cast<at::ScalarType>(k);
    if (c10::isQIntType(type)) continue;
    const Tensor sent = at::empty({3, 5}, type);
    Tensor bytes = bytes_of(sent);
    ASSERT_EQ(bytes.numel(), 15 * static_cast<int64_t>(c10::elementSize(type)))
        << type;
    // All bit patterns, including NaNs with payloads; a bool has two.
    bytes.copy_(at::arange(bytes.numel(), at::kByte));
    if (type == at::kBool) bytes.fmod_(2);
    const Tensor result = received(sent);
    EXPECT_EQ(result.scalar_type(), type);
    EXPECT_EQ(result.sizes(), sent.sizes());
    EXPECT_EQ(std::memcmp(result.const_data_ptr(), sent.const_data_ptr(),
                          bytes.numel()),
              0)
        << type;
    ++dtypes;
  }
  EXPECT_GE(dtypes, 41);  // as in LibTorch 2.11; later versions add some
}

TEST(TensorBytes, OfADenseTensorAreItsMemory) {
  const Tensor x = at::arange(2 * 3 * 4 * 5, at::kFloat).view({2, 3, 4, 5});
  const Tensor channels_last = x.contiguous(at::MemoryFormat::ChannelsLast);
  for (const Tensor& sent :
       {x, channels_last, x.permute({3, 0, 2, 1}), x[1], x[1][2].t()}) {
    const Tensor bytes = bytes_of(sent);
    EXPECT_EQ(bytes.const_data_ptr(), sent.const_data_ptr());
    EXPECT_EQ(bytes.numel(), static_cast<int64_t>(sent.nbytes()));
    EXPECT_EQ(bytes.sizes(), at::IntArrayRef({sent.numel() * 4}));
    EXPECT_EQ(bytes.scalar_type(), at::kByte);
    const Tensor result = received(sent);
    EXPECT_EQ(result.strides(), sent.strides());
    EXPECT_TRUE(at::equal(result, sent));
  }
  EXPECT_TRUE(
      received(channels_last).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(TensorBytes, OfAnyOtherTensorAreContiguous) {
  const Tensor x = at::arange(24, at::kDouble).view({4, 6});
  for (const Tensor& sent :
       {x.slice(1, 1, 4), x.slice(0, 0, 4, 2), x.t().slice(0, 2, 3),
        x[0].expand({3, 6}), x.slice(1, 0, 1).expand({4, 3}),
        at::ones({}).expand({2, 2})}) {
    ASSERT_FALSE(sent.is_non_overlapping_and_dense());
    EXPECT_NE(bytes_of(sent).const_data_ptr(), sent.const_data_ptr());
    const Tensor result = received(sent);
    EXPECT_TRUE(result.is_contiguous());
    EXPECT_EQ(result.strides(), sent.contiguous().strides());
    EXPECT_TRUE(at::equal(result, sent));
  }
}

TEST(TensorBytes, OfTensorsWithoutDimensionsOrElements) {
  const Tensor scalar = at::ones({}, at::kInt);
  EXPECT_TRUE(at::equal(received(scalar), scalar));
  const Tensor x = at::ones({4, 6});
  for (const Tensor& sent :
       {at::empty({0}), at::empty({2, 0, 3}), x.slice(0, 4, 4),
        x.slice(1, 6, 6), x.slice(1, 3, 3).expand({4, 0})}) {
    EXPECT_EQ(bytes_of(sent).numel(), 0);
    EXPECT_EQ(received(sent).sizes(), sent.sizes());
  }
}

TEST(TensorBytes, OfAnUndefinedTensorAreNone) {
  EXPECT_TRUE(spec_of(Tensor(), /*requires_grad=*/false) == TensorSpec());
  EXPECT_TRUE(spec_of(Tensor(), /*requires_grad=*/true) == TensorSpec());
  EXPECT_EQ(bytes_of(Tensor()).numel(), 0);
  EXPECT_FALSE(empty_like_spec(TensorSpec()).defined());
  EXPECT_FALSE(received(Tensor()).defined());
}

TEST(TensorBytes, AreOfTheElementsWhereTheMemoryIsNot) {
  const Tensor z = at::complex(at::ones({2, 3}), at::full({2, 3}, 2.));
  const Tensor conjugate = z.t().conj();
  ASSERT_TRUE(conjugate.is_conj());
  EXPECT_TRUE(at::equal(received(conjugate), conjugate.resolve_conj()));
  EXPECT_EQ(received(conjugate).strides(), conjugate.strides());
  const Tensor negative = at::_neg_view(at::full({2, 3}, 2.));
  ASSERT_TRUE(negative.is_neg());
  EXPECT_TRUE(at::equal(received(negative), at::full({2, 3}, -2.)));
  const Tensor zeros = at::_efficientzerotensor({2, 3}, at::kFloat);
  ASSERT_TRUE(zeros._is_zerotensor());
  EXPECT_TRUE(at::equal(received(zeros), at::zeros({2, 3})));
}

TEST(TensorBytes, CarryTheSizesAndStridesOfSingleElements) {
  // A dimension of size 1 can have any stride, which decides whether a tensor
  // counts as channels_last.
  const Tensor sent =
      at::ones({1, 1, 4, 4}).as_strided({1, 1, 4, 4}, {16, 1, 4, 1});
  EXPECT_EQ(received(sent).strides(), sent.strides());
  EXPECT_EQ(received(sent).suggest_memory_format(),
            sent.suggest_memory_format());
}

TEST(TensorBytes, KeepTheMemoryAndBelongToNoGraph) {
  std::vector<uint8_t> memory(1000, 3);
  bool is_free = false;
  Tensor x = at::from_blob(
      memory.data(), {1000}, [&](void*) { is_free = true; }, at::kByte);
  Tensor bytes = bytes_of(x);
  x.reset();
  EXPECT_FALSE(is_free);
  EXPECT_EQ(bytes.sum().item<int64_t>(), 3000);
  bytes.reset();
  EXPECT_TRUE(is_free);

  const Tensor leaf = at::ones({2, 3}).requires_grad_();
  for (const Tensor& sent : {leaf, leaf.mul(2), leaf.mul(2).slice(1, 0, 1)}) {
    EXPECT_FALSE(bytes_of(sent).requires_grad());
    EXPECT_TRUE(at::equal(received(sent), sent));
  }
  EXPECT_TRUE(spec_of(leaf, /*requires_grad=*/true).requires_grad);
  EXPECT_FALSE(spec_of(leaf, /*requires_grad=*/false).requires_grad);
}

TEST(TensorBytes, AreRefusedWhereTheyAreNotTheElements) {
  EXPECT_EQ(error_of([] { spec_of(at::eye(3).to_sparse(), false); }),
            "c10::Error: a tensor of layout Sparse cannot be sent to another "
            "rank; make it dense with to_dense() first");
  const Tensor quantized =
      at::quantize_per_tensor(at::ones({3}), 0.5, 0, at::kQInt8);
  EXPECT_EQ(error_of([&] { spec_of(quantized, false); }),
            "c10::Error: a tensor of dtype QInt8 cannot be sent to another "
            "rank; make it one of numbers with dequantize() first");
  const Tensor nested =
      at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})});
  EXPECT_EQ(error_of([&] { spec_of(nested, false); }),
            "c10::Error: a nested tensor cannot be sent to another rank; send "
            "its tensors in a std::vector");
  const Tensor meta = at::empty({2}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(spec_of(meta, false).bytes(), 8);
}

TEST(TensorBytes, AreOnTheDeviceOfTheTensor) {
  const Tensor meta = at::empty({2, 3}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(bytes_of(meta).device(), meta.device());
  EXPECT_EQ(bytes_of(meta).numel(), 24);
  const Tensor made = empty_like_spec(spec_of(meta.t(), false), at::kMeta);
  EXPECT_EQ(made.device(), meta.device());
  EXPECT_EQ(made.strides(), meta.t().strides());
}

TEST(MessageId, SaysInWordsWhatItIs) {
  MessageId id = {7, 1, Direction::kForward, 1, 2, -1, 3};
  EXPECT_EQ(id.to_string(),
            "the output of stage 1 for micro-batch 3 of step 7, to stage 2");
  id.skip = 4;
  EXPECT_EQ(id.to_string(),
            "skip tensor 4 for micro-batch 3 of step 7, from stage 1 to "
            "stage 2");
  id.direction = Direction::kBackward;
  std::swap(id.from_stage, id.to_stage);
  EXPECT_EQ(id.to_string(),
            "the gradient of skip tensor 4 for micro-batch 3 of step 7, from "
            "stage 2 to stage 1");
  id.skip = -1;
  EXPECT_EQ(id.to_string(),
            "the gradient of stage 1's output for micro-batch 3 of step 7, "
            "from stage 2");
}

TEST(MessageId, IsAnotherIfAnyFieldDiffers) {
  const MessageId id = {7, 1, Direction::kForward, 1, 2, -1, 3};
  EXPECT_TRUE(id == MessageId(id));
  for (int field = 0; field < 7; ++field) {
    MessageId other = id;
    if (field == 0) other.step = 8;
    if (field == 1) other.schedule = 2;
    if (field == 2) other.direction = Direction::kBackward;
    if (field == 3) other.from_stage = 0;
    if (field == 4) other.to_stage = 3;
    if (field == 5) other.skip = 0;
    if (field == 6) other.microbatch = 4;
    EXPECT_FALSE(id == other) << field;
    EXPECT_NE(error_of([&] { check_expected(other, id); }), "") << field;
  }
}

TEST(CheckExpected, NamesTheFirstThingThatDiffers) {
  const MessageId id = {7, 0x12ab, Direction::kForward, 1, 2, -1, 3};
  check_expected(id, id);
  MessageId other = id;
  other.microbatch = 4;
  EXPECT_EQ(error_of([&] { check_expected(other, id); }),
            "c10::Error: received the output of stage 1 for micro-batch 4 of "
            "step 7, to stage 2, but expected the output of stage 1 for "
            "micro-batch 3 of step 7, to stage 2; all ranks must run the same "
            "actions in the same order");
  other.schedule = 0x34;
  EXPECT_EQ(error_of([&] { check_expected(other, id); }),
            "c10::Error: the ranks run different schedules: received the "
            "output of stage 1 for micro-batch 4 of step 7, to stage 2 of a "
            "schedule with the checksum 0x34, but this rank's has 0x12ab; give "
            "all ranks the same schedule");
  other.step = 9;
  EXPECT_EQ(error_of([&] { check_expected(other, id); }),
            "c10::Error: received a message of step 9 (the output of stage 1 "
            "for micro-batch 4 of step 9, to stage 2), but this rank is in "
            "step 7 and expected the output of stage 1 for micro-batch 3 of "
            "step 7, to stage 2; all ranks must make the same calls in the "
            "same order");
}

}  // namespace
}  // namespace gpipe::internal
