#include "gpipe/runtime/device/event_pool.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/runtime/device/stamp.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/testing/simulated/contexts.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using ::testing::ElementsAre;

class EventPoolTest : public SimulatedTest {};

TEST_F(EventPoolTest, AnEventIsMadeOnceAndUsedAgain) {
  const auto record = [](int device, bool timed) {
    return internal::record_event(hpu(device), timed);
  };
  record(2, false);
  record(2, true);
  record(3, false);
  const auto made = events_made();
  for (int k = 0; k < 4; ++k) {
    record(2, false);
    record(2, true);
    record(3, false);
  }
  EXPECT_EQ(events_made(), made);
  const auto one = record(2, false);
  const auto two = record(2, false);
  EXPECT_NE(one, two);
}

TEST_F(EventPoolTest, AStreamThatWaitsKeepsTheRecordThatItSaw) {
  const c10::Stream late = new_stream(0);
  Gate gate(default_stream(1));
  const c10::Event* const first = [&] {
    const auto event = internal::record_event(hpu(1), false);
    event->block(late);
    return event.get();
  }();
  const internal::StreamScope idle(new_stream(1));
  const auto again = internal::record_event(hpu(1), false);
  ASSERT_EQ(again.get(), first);
  again->synchronize();
  EXPECT_FALSE(late.query());
  gate.open();
  late.synchronize();
}

TEST_F(EventPoolTest, EventsOfADeviceTouchNoOther) {
  synchronize();
  forget_contexts();
  {
    const auto event = internal::Event::record(hpu(2));
    event.wait(hpu(3));
    const auto start = internal::Stamp::now(hpu(2));
    internal::Stamp::now(hpu(2)).seconds_since(start);
  }
  EXPECT_THAT(devices_with_context(), ElementsAre(2, 3));
}

}  // namespace
}  // namespace gpipe::simulated
