// Tests what makes hosts wait although a program does not ask for it.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using at::Tensor;
using ::testing::ElementsAre;

// The order in which threads pass their points.
class Order {
 public:
  void pass(const std::string& point) {
    std::lock_guard<std::mutex> lock(mutex_);
    points_.push_back(point);
  }
  std::vector<std::string> points() {
    std::lock_guard<std::mutex> lock(mutex_);
    return points_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> points_;
};

class HostCostsTest : public SimulatedTest {
 protected:
  // Runs `part` on another thread while a stream of hpu:0 is blocked, and
  // expects that it ends after the stream has been let go.
  template <typename Part>
  void expect_waits_for_the_device(Part part) {
    Order order;
    Gate gate(new_stream(0));
    const auto other = std::async(std::launch::async, [&] {
      part();
      order.pass("the call returns");
    });
    EXPECT_EQ(other.wait_for(std::chrono::milliseconds(20)),
              std::future_status::timeout);
    order.pass("the stream goes on");
    gate.open();
    other.wait();
    EXPECT_THAT(order.points(),
                ElementsAre("the stream goes on", "the call returns"));
  }
};

TEST_F(HostCostsTest, TheFirstUseOfAnOperatorWaitsForTheDevice) {
  const Tensor x = at::ones({2}).to(hpu(0));
  x.tanh();
  set_host_costs({/*most_launches=*/0, /*event_seconds=*/0,
                  /*loads_operators=*/true});
  expect_waits_for_the_device([&] { x.tanh(); });
  // Now it is loaded.
  Gate gate(new_stream(0));
  x.tanh();
}

TEST_F(HostCostsTest, AFullDeviceWaitsUntilItIsIdle) {
  const Tensor x = at::ones({100}).to(hpu(0));
  synchronize();
  set_memory_limit(0, bytes_in_use(0));
  expect_waits_for_the_device([&] {
    EXPECT_THROW(at::empty({100}, x.options()), c10::OutOfMemoryError);
  });
}

TEST_F(HostCostsTest, AFullStreamBlocksLaunches) {
  const Tensor x = at::ones({2}).to(hpu(0));
  synchronize();
  set_host_costs({/*most_launches=*/3, 0, false});
  Order order;
  Gate gate(default_stream(0));
  const auto other = std::async(std::launch::async, [&] {
    for (int k = 0; k < 5; ++k) x.add_(1);
    order.pass("launched");
  });
  EXPECT_EQ(other.wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  order.pass("the stream goes on");
  gate.open();
  other.wait();
  EXPECT_THAT(order.points(), ElementsAre("the stream goes on", "launched"));
  EXPECT_THAT(values(x), ElementsAre(6, 6));
}

TEST_F(HostCostsTest, EventsTakeTime) {
  set_host_costs({0, /*event_seconds=*/2e-3, false});
  const auto begin = std::chrono::steady_clock::now();
  c10::Event event(kDeviceType);
  for (int k = 0; k < 3; ++k) event.record(default_stream(0));
  event.block(default_stream(1));
  EXPECT_GE(std::chrono::steady_clock::now() - begin,
            std::chrono::milliseconds(4 * 2));
}

}  // namespace
}  // namespace gpipe::simulated
