#include "gpipe/distributed/channel/shape_prediction.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace gpipe::internal {
namespace {

MessageId message(int32_t microbatch, uint64_t step = 0) {
  return {step, 0x1234abcd, Direction::kForward, 0, 1, -1, microbatch};
}

ShapePrediction::Specs rows(int64_t count) {
  return {{true, false, at::kFloat, {count, 3}, {3, 1}}};
}

TEST(ShapePrediction, ForeseesWhatCameTwiceInARow) {
  ShapePrediction forecast;
  EXPECT_EQ(forecast.of(message(0)), nullptr);
  forecast.learn(message(0), rows(4));
  EXPECT_EQ(forecast.of(message(0)), nullptr);
  forecast.learn(message(0, 1), rows(4));
  ASSERT_NE(forecast.of(message(0, 2)), nullptr);
  EXPECT_EQ(*forecast.of(message(0, 2)), rows(4));
}

TEST(ShapePrediction, BeginsAnewAfterSomethingElse) {
  ShapePrediction forecast;
  for (const int64_t count : {4, 4, 5}) {
    forecast.learn(message(0), rows(count));
  }
  EXPECT_EQ(forecast.of(message(0)), nullptr);
  forecast.learn(message(0), rows(4));
  EXPECT_EQ(forecast.of(message(0)), nullptr);
  forecast.learn(message(0), rows(4));
  EXPECT_NE(forecast.of(message(0)), nullptr);
}

TEST(ShapePrediction, KeepsMessagesApartButForTheirStep) {
  ShapePrediction forecast;
  std::vector<MessageId> others(6, message(0));
  others[0].schedule = 1;
  others[1].direction = Direction::kBackward;
  others[2].from_stage = 1;
  others[3].to_stage = 2;
  others[4].skip = 0;
  others[5].microbatch = 1;
  forecast.learn(message(0, 7), rows(4));
  forecast.learn(message(0, 8), rows(4));
  for (const MessageId& other : others) {
    EXPECT_EQ(forecast.of(other), nullptr) << other.to_string();
  }
  EXPECT_NE(forecast.of(message(0, 9)), nullptr);
}

TEST(ShapePrediction, OfBothSidesIsTheSameHoweverManyMessagesThereAre) {
  // More messages than are remembered. The sender asks before each message.
  ShapePrediction sender, receiver;
  for (uint64_t step = 0; step < 2; ++step) {
    for (int32_t k = 0; k < 70000; ++k) {
      const auto* const predicted = sender.of(message(k, step));
      const bool of_sender = predicted != nullptr;
      ASSERT_EQ(of_sender, receiver.of(message(k, step)) != nullptr) << k;
      sender.learn(message(k, step), rows(1));
      receiver.learn(message(k, step), rows(1));
    }
  }
}

}  // namespace
}  // namespace gpipe::internal
