#include "gpipe/runtime/device/stamp.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using std::chrono::milliseconds;

class StampTest : public SimulatedTest {};

TEST_F(StampTest, OnACpuItIsTheClock) {
  const internal::Stamp start = internal::Stamp::now(c10::kCPU);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_GE(internal::Stamp::now(c10::kCPU).seconds_since(start), 0.02);
}

TEST_F(StampTest, OnAnAcceleratorItIsTheTimeOfTheStreamNotOfTheHost) {
  const auto before = std::chrono::steady_clock::now();
  const internal::Stamp start = internal::Stamp::now(hpu(1));
  EXPECT_EQ(start.seconds_since(start), 0);  // waits for the stamp
  Gate gate(default_stream(1));
  const internal::Stamp end = internal::Stamp::now(hpu(1));
  std::this_thread::sleep_for(milliseconds(20));
  gate.open();
  const double seconds = end.seconds_since(start);
  EXPECT_GE(seconds, 0.02);
  const std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - before;
  EXPECT_LE(seconds, passed.count());
}

TEST_F(StampTest, TakingItDoesNotMakeTheHostWait) {
  const auto before = Simulation::get().counts().host_waits;
  const internal::Stamp start = internal::Stamp::now(hpu(0));
  const internal::Stamp end = internal::Stamp::now(hpu(0));
  EXPECT_EQ(Simulation::get().counts().host_waits, before);
  EXPECT_GE(end.seconds_since(start), 0);
  EXPECT_GT(Simulation::get().counts().host_waits, before);
}

}  // namespace
}  // namespace gpipe::simulated
