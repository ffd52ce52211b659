#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/crc32c.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/runtime/cell/value.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Bytes = std::vector<uint8_t>;
using Sizes = std::vector<int64_t>;

constexpr auto kVector = static_cast<uint8_t>(Value::Kind::kVector);
constexpr auto kTuple = static_cast<uint8_t>(Value::Kind::kTuple);
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Offsets of fields in a message; the spec of its first tensor is at 88.
constexpr int kVersionAt = 8, kTotalAt = 12, kChecksumAt = 16,
              kOverflowChecksumAt = 20, kCountAt = 24, kRowsAt = 56,
              kTotalRowsAt = 64, kDirectionAt = 72, kValueKindAt = 73,
              kPredictedAt = 74, kZeroAt = 75, kSkipsAt = 76, kFlagsAt = 88,
              kTypeAt = 89, kDimsAt = 90, kSize0At = 92, kStride0At = 100,
              kStride1At = 116;

TensorSpec spec(at::ScalarType type, Sizes sizes, Sizes strides,
                bool requires_grad = false) {
  return {true, requires_grad, type, std::move(sizes), std::move(strides)};
}

Message message_of(std::vector<TensorSpec> specs) {
  Message message;
  message.id = {7, 0x1234abcd, Direction::kForward, 1, 2, -1, 3};
  message.value_kind = kVector;
  message.skips = specs.size() < 5 ? 0 : 5;
  message.as_predicted = true;
  message.rows = 4;
  message.total_rows = 30;
  message.seed = 0xfedcba9876543210;
  message.tensors = std::move(specs);
  return message;
}

// Returns specs of different kinds of tensors; 40 of them need an overflow.
std::vector<TensorSpec> mixed_specs(std::size_t count) {
  std::vector<TensorSpec> specs;
  while (specs.size() < count) {
    switch (specs.size() % 5) {
      case 0:
        specs.push_back(spec(at::kFloat, {2, 3, 4, 5}, {60, 1, 15, 3}, true));
        break;
      case 1:
        specs.push_back(spec(at::kLong, {}, {}));
        break;
      case 2:
        specs.emplace_back();  // undefined
        break;
      case 3:
        specs.push_back(spec(at::kBool, {0, 3}, {3, 1}));
        specs.back().shared = true;
        break;
      case 4:
        specs.push_back(spec(at::kBFloat16, {7}, {1}));
        break;
    }
  }
  return specs;
}

Message decoded(const Bytes& data) {
  return decode(data.data(), static_cast<int64_t>(data.size()));
}

void expect_same(const Message& a, const Message& b) {
  EXPECT_TRUE(a.id == b.id) << a.id.to_string() << " / " << b.id.to_string();
  EXPECT_EQ(a.value_kind, b.value_kind);
  EXPECT_EQ(a.skips, b.skips);
  EXPECT_EQ(a.as_predicted, b.as_predicted);
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.total_rows, b.total_rows);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_TRUE(a.tensors == b.tensors);
}

// Makes the checksums right again, like a sender of nonsense would.
void seal(Bytes& data) {
  const auto put = [&](int at, uint32_t crc) {
    std::memcpy(&data[at], &crc, sizeof(crc));
  };
  put(kOverflowChecksumAt,
      crc32c(data.data() + kHeaderBytes, data.size() - kHeaderBytes));
  put(kChecksumAt, crc32c(&data[20], kHeaderBytes - 20, crc32c(&data[0], 16)));
}

// Returns the error of a message with `value` at `at`, with right checksums.
template <typename T>
std::string error_with(Bytes data, int at, T value) {
  std::memcpy(&data[at], &value, sizeof(value));
  seal(data);
  return error_of([&] { decoded(data); });
}

TEST(Message, ComesBackWithTheLargestAndSmallestNumbers) {
  Message message;
  message.id.step = std::numeric_limits<uint64_t>::max();
  message.id.schedule = std::numeric_limits<uint32_t>::max();
  message.id.direction = Direction::kBackward;
  message.id.from_stage = std::numeric_limits<int32_t>::max();
  message.id.to_stage = std::numeric_limits<int32_t>::min();
  message.id.skip = std::numeric_limits<int32_t>::max() - 1;
  message.id.microbatch = std::numeric_limits<int32_t>::min() + 1;
  message.value_kind = kTuple;
  message.rows = kMost - 1;
  message.total_rows = kMost;
  expect_same(decoded(encode(message)), message);
}

TEST(Message, ComesBackWithAnyNumberOfTensors) {
  for (const std::size_t count : {0, 1, 2, 13, 40, 1000}) {
    const Message message = message_of(mixed_specs(count));
    const Bytes data = encode(message);
    EXPECT_EQ(overflow_bytes(data.data()),
              static_cast<int64_t>(data.size()) - kHeaderBytes);
    expect_same(decoded(data), message);
  }
}

TEST(Message, OverflowsOnlyWhenTheHeaderIsFull) {
  // 13 specs of 68 bytes and one of 52 fill the 936 bytes of the header.
  std::vector<TensorSpec> specs(
      13, spec(at::kHalf, {1, 2, 3, 4}, {24, 12, 4, 1}, true));
  specs.push_back(spec(at::kInt, {5, 6, 7}, {42, 7, 1}));
  const Bytes full = encode(message_of(specs));
  EXPECT_EQ(full.size(), 1024u);
  EXPECT_EQ(overflow_bytes(full.data()), 0);
  expect_same(decoded(full), message_of(specs));

  specs.emplace_back();
  const Bytes more = encode(message_of(specs));
  EXPECT_EQ(more.size(), 1028u);
  EXPECT_EQ(overflow_bytes(more.data()), 4);
  expect_same(decoded(more), message_of(specs));
}

// The format is fixed, because other builds must read it: if these numbers
// change, the version of the format must change, too.
TEST(Message, LiesInMemoryAsItAlwaysDid) {
  const Bytes data = encode(message_of(mixed_specs(40)));
  const Bytes begin(data.begin(), data.begin() + 16);
  EXPECT_EQ(begin, (Bytes{'g', 'p', 'i', 'p', 'e', 'm', 's', 'g',  //
                          4, 0, 0, 0, 0x78, 0x04, 0, 0}));
  const Bytes fields(data.begin() + kCountAt, data.begin() + 100);
  EXPECT_EQ(fields, (Bytes{40,   0,    0,    0,    0xcd, 0xab, 0x34, 0x12,  //
                           7,    0,    0,    0,    0,    0,    0,    0,     //
                           1,    0,    0,    0,    2,    0,    0,    0,     //
                           0xff, 0xff, 0xff, 0xff, 3,    0,    0,    0,     //
                           4,    0,    0,    0,    0,    0,    0,    0,     //
                           30,   0,    0,    0,    0,    0,    0,    0,     //
                           0,    1,    1,    0,    5,    0,    0,    0,     //
                           0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,  //
                           3,    6,    4,    0,    2,    0,    0,    0,     //
                           0,    0,    0,    0}));
  EXPECT_EQ(crc32c(data.data(), data.size()), 0x7424138bu);
}

TEST(Message, SaysWhichTensorsAreNotSentAgain) {
  TensorSpec mask = spec(at::kBool, {4, 4}, {4, 1}, false);
  mask.unsplit = 253;
  TensorSpec again = mask;
  again.repeated = true;
  EXPECT_EQ(mask.sent_bytes(), 16);
  EXPECT_EQ(again.sent_bytes(), 0);
  expect_same(decoded(encode(message_of({mask, again}))),
              message_of({mask, again}));
  mask.unsplit = 254;
  EXPECT_NE(error_of([&] { encode(message_of({mask})); }), "");
}

TEST(Message, IsRefusedWithAnyBitFlipped) {
  for (const std::size_t count : {0, 1, 40}) {
    Bytes data = encode(message_of(mixed_specs(count)));
    for (std::size_t bit = 0; bit < 8 * data.size(); ++bit) {
      const auto mask = static_cast<uint8_t>(1 << bit % 8);
      data[bit / 8] ^= mask;
      const std::string error = error_of([&] { decoded(data); });
      ASSERT_THAT(error, StartsWith("c10::Error: ")) << "bit " << bit;
      if (bit < 64) {
        ASSERT_THAT(error, HasSubstr("is not a message of gpipe"));
      } else if (bit < 96) {
        ASSERT_THAT(error, HasSubstr("of gpipe's wire format"));
      } else if (bit < 8 * kHeaderBytes) {
        ASSERT_THAT(error, HasSubstr("the header of a message is damaged"));
      } else {
        ASSERT_THAT(error, HasSubstr("the overflow of a message is damaged"));
      }
      data[bit / 8] ^= mask;
    }
    decoded(data);
  }
}

TEST(Message, IsRefusedIfItIsCutOffOrTooLong) {
  for (const std::size_t count : {1, 40}) {
    const Bytes data = encode(message_of(mixed_specs(count)));
    for (std::size_t size = 0; size < data.size(); ++size) {
      // A separate allocation, so that AddressSanitizer finds reads beyond its
      // end.
      const Bytes cut(data.begin(), data.begin() + size);
      ASSERT_THAT(error_of([&] { decoded(cut); }),
                  StartsWith("c10::Error: a message is cut off: its header "))
          << size;
    }
    Bytes longer = data;
    longer.push_back(0);
    EXPECT_EQ(error_of([&] { decoded(longer); }),
              "c10::Error: a message is too long: its header and overflow "
              "have " +
                  std::to_string(data.size()) + " bytes, but there are " +
                  std::to_string(data.size() + 1));
  }
}

TEST(Message, SaysHowItIsNotOne) {
  const Bytes data = encode(message_of(mixed_specs(1)));
  Bytes other(kHeaderBytes, 0x7f);
  EXPECT_EQ(error_of([&] { overflow_bytes(other.data()); }),
            "c10::Error: what was received is not a message of gpipe (it "
            "begins with the bytes 7f 7f 7f 7f 7f 7f 7f 7f); give the pipeline "
            "a process group that nothing else uses");
  EXPECT_EQ(error_with(data, kVersionAt, uint32_t{1}),
            "c10::Error: received a message in version 1 of gpipe's wire "
            "format, but this rank reads version 4; run the same gpipe on all "
            "ranks");
  EXPECT_EQ(error_with(data, kTotalAt, uint32_t{1023}),
            "c10::Error: the header of a message says that it has 1023 bytes "
            "with its overflow; there can be 1024 to 1049600");
  EXPECT_THAT(error_with(data, kTotalAt, uint32_t{1049601}),
              HasSubstr("says that it has 1049601 bytes"));
  EXPECT_THAT(error_with(data, kTotalAt, uint32_t{1049600}),
              HasSubstr("a message is cut off: its header and overflow have "
                        "1049600 bytes, but there are 1024"));
}

TEST(Message, IsRefusedIfItsFieldsCannotBe) {
  const Bytes data = encode(message_of(mixed_specs(1)));
  EXPECT_EQ(error_with(data, kDirectionAt, uint8_t{2}),
            "c10::Error: a message has the direction 2; there are 0 (forward) "
            "and 1 (backward)");
  EXPECT_EQ(error_with(data, kValueKindAt, uint8_t{3}),
            "c10::Error: a message holds a value of kind 3; kinds end at 2");
  EXPECT_EQ(error_with(data, kRowsAt, int64_t{-1}),
            "c10::Error: a message says that its micro-batch has -1 of 30 "
            "rows, which is impossible");
  EXPECT_THAT(error_with(data, kTotalRowsAt, int64_t{-2}),
              HasSubstr("has 4 of -2 rows, which is impossible"));
  // A part larger than the whole has no valid weight.
  EXPECT_THAT(error_with(data, kRowsAt, int64_t{31}),
              HasSubstr("has 31 of 30 rows, which is impossible"));
  EXPECT_THAT(error_with(data, kTotalRowsAt, int64_t{0}),
              HasSubstr("has 4 of 0 rows, which is impossible"));
  EXPECT_EQ(error_with(data, kCountAt, uint32_t{235}),
            "c10::Error: a message says that it has 235 tensors, more than its "
            "1024 bytes can describe");
  // After the spec with 4 dimensions there is room for 217 undefined ones.
  EXPECT_EQ(error_with(data, kCountAt, uint32_t{219}),
            "c10::Error: a message ends before tensor 218");
  EXPECT_EQ(error_with(data, kCountAt, uint32_t{218}), "");
  EXPECT_THAT(error_with(data, kCountAt, uint32_t{0xffffffff}),
              HasSubstr("says that it has 4294967295 tensors"));
  EXPECT_THAT(error_with(data, kZeroAt, uint8_t{1}),
              HasSubstr("bytes set that mean nothing"));
  EXPECT_THAT(error_with(data, kPredictedAt, uint8_t{2}),
              HasSubstr("bytes set that mean nothing"));
  EXPECT_EQ(error_with(data, kSkipsAt, uint32_t{2}),
            "c10::Error: a message says that 2 of its 1 tensors are skip "
            "tensors, which is impossible");
  // Behind the only spec, which has 4 dimensions.
  for (const int unused : {kFlagsAt + 68, 500, 1023}) {
    EXPECT_THAT(error_with(data, unused, uint8_t{1}),
                HasSubstr("bytes set that mean nothing"));
  }
}

TEST(Message, IsRefusedIfATensorCannotBe) {
  const Bytes data = encode(
      message_of({spec(at::kFloat, {2, 3}, {3, 1}, true), TensorSpec()}));
  EXPECT_EQ(error_with(data, kFlagsAt, uint8_t{17}),
            "c10::Error: tensor 0 of a message has bits set that mean nothing");
  EXPECT_EQ(error_with(data, kFlagsAt, uint8_t{9}),
            "c10::Error: tensor 0 of a message is a repetition of shared "
            "tensor -1; those that are sent once are 0 to 253");
  EXPECT_THAT(error_with(data, kFlagsAt + 3, uint8_t{255}),
              HasSubstr("shared tensor 254; those that are sent once"));
  EXPECT_EQ(error_with(data, kFlagsAt, uint8_t{0}),
            "c10::Error: tensor 0 of a message is undefined, but has the dtype "
            "number 6");
  EXPECT_THAT(error_with(data, kFlagsAt + 36, uint8_t{2}),
              HasSubstr("tensor 1 of a message is undefined, but has sizes or "
                        "strides, requires grad, is shared or repeated"));
  EXPECT_THAT(error_with(data, kTypeAt, uint8_t{12}),
              HasSubstr("tensor 0 of a message has the dtype number 12 "
                        "(QInt8), which cannot be sent"));
  for (int type = static_cast<int>(at::ScalarType::Undefined); type < 256;
       ++type) {
    EXPECT_THAT(error_with(data, kTypeAt, static_cast<uint8_t>(type)),
                HasSubstr("which cannot be sent; run the same LibTorch on all "
                          "ranks"));
  }
  EXPECT_EQ(error_with(data, kTypeAt, uint8_t{4}),
            "c10::Error: tensor 0 of a message has dtype Long and requires "
            "grad; only floating point and complex tensors can");
  EXPECT_EQ(error_with(data, kDimsAt, uint8_t{59}),
            "c10::Error: a message ends within the 59 dimensions of tensor 0");
  EXPECT_THAT(error_with(data, kSize0At, int64_t{-1}),
              HasSubstr("a tensor cannot have sizes [-1, 3]"));
  EXPECT_THAT(error_with(data, kSize0At, int64_t{1} << 60),
              HasSubstr("their product is more than 64 bits hold"));
  for (const int64_t stride :
       {int64_t{-3}, int64_t{0}, int64_t{2}, int64_t{4}, kMost}) {
    EXPECT_EQ(error_with(data, kStride0At, stride),
              "c10::Error: tensor 0 of a message has sizes [2, 3] and strides "
              "[" +
                  std::to_string(stride) +
                  ", 1], which do not fill its memory exactly; only dense "
                  "tensors are sent (spec_of() makes others contiguous)");
  }
  EXPECT_THAT(error_with(data, kStride1At, int64_t{3}),
              HasSubstr("and strides [3, 3], which do not fill"));
}

TEST(Message, IsRefusedWithMoreDimensionsThanLibTorchTakes) {
  const Sizes ones(64, 1);
  Message message = message_of({spec(at::kFloat, ones, ones)});
  expect_same(decoded(encode(message)), message);
  EXPECT_EQ(empty_like_spec(message.tensors[0]).dim(), 64);
  message.tensors[0].sizes.push_back(1);
  message.tensors[0].strides.push_back(1);
  EXPECT_EQ(error_of([&] { encode(message); }),
            "c10::Error: tensor 0 of a message has 65 dimensions; at most 64 "
            "can be sent");
}

TEST(Message, HoldsAsManyTensorsAsItsKindSaysOnAForwardBoundary) {
  Message message = message_of(mixed_specs(2));
  message.skips = 0;
  message.value_kind = static_cast<uint8_t>(Value::Kind::kTensor);
  EXPECT_EQ(error_of([&] { encode(message); }),
            "c10::Error: a message holds one tensor by its kind, but specs of "
            "2");
  message.value_kind = kTuple;
  encode(message);
  message.tensors = mixed_specs(9);
  EXPECT_EQ(error_of([&] { encode(message); }),
            "c10::Error: a message holds a tuple by its kind, of 1 to 8 "
            "tensors, but specs of 9");
  message.id.direction = Direction::kBackward;
  encode(message);
  // The skip tensors before the boundary do not count ...
  message.id.direction = Direction::kForward;
  message.skips = 1;
  encode(message);
  // ... and without a boundary all are skip tensors.
  message.id.skip = 0;
  EXPECT_EQ(error_of([&] { encode(message); }),
            "c10::Error: a message says that 1 of its 9 tensors are skip "
            "tensors, which is impossible");
  message.skips = 9;
  encode(message);
}

TEST(Message, IsNotMadeOfMoreThanCanBeSent) {
  // The maximum is accepted ...
  const Message message = message_of(std::vector<TensorSpec>(65536));
  expect_same(decoded(encode(message)), message);
  // ... and one more is refused.
  EXPECT_EQ(
      error_of([] { encode(message_of(std::vector<TensorSpec>(65537))); }),
      "c10::Error: a message has 65537 tensors; at most 65536 can be sent in "
      "one: put some of them together");
  EXPECT_EQ(error_of([] { encode(message_of(mixed_specs(65536))); }),
            "c10::Error: the sizes and strides of the 65536 tensors of a "
            "message take 1729256 bytes beyond its header; at most 1048576 can "
            "be sent: put some of the tensors together");
}

TEST(Message, RefusesAnOverflowThatItDoesNotNeed) {
  Bytes data = encode(message_of(mixed_specs(1)));
  data.resize(data.size() + 4);
  EXPECT_THAT(error_with(data, kTotalAt, uint32_t{1028}),
              HasSubstr("or more of them than it needs"));
}

// Expects that encode() returns `data` for `message`, and that LibTorch can
// make tensors for its specs.
void expect_consistent(const Bytes& data, const Message& message) {
  ASSERT_EQ(encode(message), data);
  for (const TensorSpec& each : message.tensors) {
    const int64_t bytes = each.bytes();
    if (!each.defined) {
      ASSERT_EQ(bytes, 0);
      continue;
    }
    __int128 numel = 1, last = 0;  // index of the last element
    for (std::size_t d = 0; d < each.sizes.size(); ++d) {
      numel *= each.sizes[d];
      last += static_cast<__int128>(each.sizes[d] - 1) * each.strides[d];
    }
    ASSERT_GE(bytes, 0);
    ASSERT_TRUE(numel * c10::elementSize(each.type) == bytes);
    ASSERT_TRUE(numel == 0 || last == numel - 1);
    if (bytes > 1 << 20) continue;
    const Tensor tensor = empty_like_spec(each);
    ASSERT_TRUE(tensor.is_non_overlapping_and_dense());
    TensorSpec spec = spec_of(tensor, each.requires_grad);
    spec.shared = each.shared;
    spec.unsplit = each.unsplit;
    spec.repeated = each.repeated;
    ASSERT_TRUE(spec == each);
    ASSERT_EQ(bytes_of(tensor).numel(), bytes);
  }
}

TEST(Message, IsAnErrorOrConsistentWhateverIsReceived) {
  std::mt19937 random(0);
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  std::vector<Bytes> messages;
  for (const std::size_t count : {0, 1, 5, 12, 40}) {
    messages.push_back(encode(message_of(mixed_specs(count))));
  }
  constexpr uint8_t kOften[] = {0, 1, 2, 3, 4, 8, 64, 127, 128, 255};
  int accepted = 0, refused = 0;
  for (int k = 0; k < 40000; ++k) {
    Bytes data = messages[below(messages.size())];
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
      // Mostly the important fields, but not the magic and the version.
      const std::size_t end = below(4) == 0 ? data.size() : 160;
      uint8_t& byte = data[12 + below(end - 12)];
      switch (below(3)) {
        case 0:
          byte ^= static_cast<uint8_t>(1 << below(8));
          break;
        case 1:
          byte = kOften[below(std::size(kOften))];
          break;
        case 2:
          byte = static_cast<uint8_t>(below(256));
          break;
      }
    }
    if (below(8) == 0) data.resize(kHeaderBytes + below(64));
    if (below(4) != 0) {
      const auto total = static_cast<uint32_t>(data.size());
      std::memcpy(&data[kTotalAt], &total, sizeof(total));
    }
    data.shrink_to_fit();
    seal(data);
    Message message;
    const std::string error = error_of([&] { message = decoded(data); });
    if (!error.empty()) {
      ++refused;
      ASSERT_THAT(error, StartsWith("c10::Error: "));
      continue;
    }
    ++accepted;
    expect_consistent(data, message);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 3000);
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace gpipe::internal
