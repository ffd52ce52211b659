#include "gpipe/distributed/channel/shape_prediction.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gpipe/distributed/channel/message.h"

namespace gpipe::internal {
namespace {

MessageId message(int32_t microbatch, uint64_t step = 0) {
  return {step, 0x1234abcd, Direction::kForward, 0, 1, -1, microbatch};
}

ShapePrediction::Specs rows(int64_t count) {
  return {{true, false, at::kFloat, {count, 3}, {3, 1}}};
}

TEST(ShapePrediction, PredictsWhatCameTwiceInARow) {
  ShapePrediction prediction;
  EXPECT_EQ(prediction.predict(message(0)), nullptr);
  prediction.observe(message(0), rows(4));
  EXPECT_EQ(prediction.predict(message(0)), nullptr);
  prediction.observe(message(0, 1), rows(4));
  ASSERT_NE(prediction.predict(message(0, 2)), nullptr);
  EXPECT_EQ(*prediction.predict(message(0, 2)), rows(4));
}

TEST(ShapePrediction, BeginsAnewAfterSomethingElse) {
  ShapePrediction prediction;
  for (const int64_t count : {4, 4, 5}) {
    prediction.observe(message(0), rows(count));
  }
  EXPECT_EQ(prediction.predict(message(0)), nullptr);
  prediction.observe(message(0), rows(4));
  EXPECT_EQ(prediction.predict(message(0)), nullptr);
  prediction.observe(message(0), rows(4));
  EXPECT_NE(prediction.predict(message(0)), nullptr);
}

TEST(ShapePrediction, KeepsMessagesApartButForTheirStep) {
  ShapePrediction prediction;
  std::vector<MessageId> others(6, message(0));
  others[0].schedule = 1;
  others[1].direction = Direction::kBackward;
  others[2].from_stage = 1;
  others[3].to_stage = 2;
  others[4].skip = 0;
  others[5].microbatch = 1;
  prediction.observe(message(0, 7), rows(4));
  prediction.observe(message(0, 8), rows(4));
  for (const MessageId& other : others) {
    EXPECT_EQ(prediction.predict(other), nullptr) << other.to_string();
  }
  EXPECT_NE(prediction.predict(message(0, 9)), nullptr);
}

TEST(ShapePrediction, OfBothSidesIsTheSameHoweverManyMessagesThereAre) {
  // More messages than are remembered. The sender asks before each message.
  ShapePrediction sender, receiver;
  for (uint64_t step = 0; step < 2; ++step) {
    for (int32_t k = 0; k < 70000; ++k) {
      const auto* const predicted = sender.predict(message(k, step));
      const bool of_sender = predicted != nullptr;
      ASSERT_EQ(of_sender, receiver.predict(message(k, step)) != nullptr) << k;
      sender.observe(message(k, step), rows(1));
      receiver.observe(message(k, step), rows(1));
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
