#include "gpipe/testing/simulated/simulated.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using ::gpipe::testing::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using torch::Tensor;

class StreamTest : public SimulatedTest {};

// Returns the names of the stream's work since the last call.
std::vector<std::string> trace_of(const c10::Stream& stream) {
  std::vector<std::string> names;
  for (const Given& each : take_trace()) {
    if (each.stream == stream) names.push_back(each.name);
  }
  return names;
}

TEST_F(StreamTest, AnOperatorReturnsBeforeItIsDone) {
  const c10::Stream stream = default_stream(0);
  const Tensor x = torch::zeros({2}, hpu(0));
  synchronize();
  Gate gate(stream);
  x.add_(1);
  EXPECT_FALSE(stream.query());
  EXPECT_THAT(memory(x), ElementsAre(0, 0));
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(stream.query());
  EXPECT_THAT(memory(x), ElementsAre(1, 1));
}

TEST_F(StreamTest, DoesWhatItIsGivenInOrder) {
  const Tensor x = torch::zeros({1}, hpu(0));
  for (int k = 0; k < 50; ++k) x.mul_(2).add_(1).remainder_(1009);
  float expected = 0;
  for (int k = 0; k < 50; ++k) {
    expected = static_cast<float>(static_cast<int>(expected * 2 + 1) % 1009);
  }
  EXPECT_THAT(values(x), ElementsAre(expected));
}

TEST_F(StreamTest, SynchronisingItWaits) {
  const Tensor x = torch::zeros({1}, hpu(0));
  busy(x, 2e-3);
  x.add_(1);
  default_stream(0).synchronize();
  EXPECT_THAT(memory(x), ElementsAre(1));
}

TEST_F(StreamTest, SynchronisingADeviceWaitsForAllItsStreams) {
  const c10::Stream streams[] = {default_stream(1), new_stream(1),
                                 new_stream(1)};
  std::vector<Tensor> tensors;
  for (const c10::Stream& stream : streams) {
    const c10::StreamGuard guard(stream);
    tensors.push_back(torch::zeros({1}, hpu(1)));
    busy(tensors.back(), 2e-3);
    tensors.back().add_(1);
  }
  at::accelerator::synchronizeDevice(1);
  for (const c10::Stream& stream : streams) EXPECT_TRUE(stream.query());
  for (const Tensor& each : tensors) EXPECT_THAT(memory(each), ElementsAre(1));
}

TEST_F(StreamTest, TwoRunSideBySide) {
  for (const c10::Stream& other : {new_stream(0), default_stream(1)}) {
    // Each task waits for the other one's signal.
    std::promise<void> first, second;
    Simulation::get().enqueue(default_stream(0), {"first", {}, [&] {
                                                    first.set_value();
                                                    second.get_future().wait();
                                                  }});
    Simulation::get().enqueue(other, {"second", {}, [&] {
                                        first.get_future().wait();
                                        second.set_value();
                                      }});
    synchronize();
  }
}

TEST_F(StreamTest, OperatorsRunOnOneThreadWhateverTheHostHas) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  int threads = 0;
  Simulation::get().enqueue(
      new_stream(0), {"threads", {}, [&] { threads = at::get_num_threads(); }});
  synchronize();
  EXPECT_EQ(threads, 1);
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(before);
}

TEST_F(StreamTest, ThePoolHas32InTurn) {
  const c10::impl::VirtualGuardImpl guard(kDeviceType);
  std::vector<c10::Stream> first, second;
  for (int k = 0; k < 32; ++k) {
    first.push_back(guard.getStreamFromGlobalPool(hpu(2)));
  }
  for (int k = 0; k < 32; ++k) {
    second.push_back(guard.getStreamFromGlobalPool(hpu(2)));
  }
  EXPECT_EQ(first, second);
  for (int k = 1; k < 32; ++k) EXPECT_NE(first[k], first[0]);
  EXPECT_NE(guard.getStreamFromGlobalPool(hpu(1)), first[0]);
  const c10::Stream urgent =
      guard.getStreamFromGlobalPool(hpu(2), /*isHighPriority=*/true);
  for (const c10::Stream& each : first) EXPECT_NE(each, urgent);
}

TEST_F(StreamTest, AGuardChoosesTheCurrentOne) {
  const c10::Stream stream = new_stream(0);
  const Tensor x = torch::zeros({1}, hpu(0));
  synchronize();
  take_trace();
  {
    const c10::StreamGuard guard(stream);
    EXPECT_EQ(at::accelerator::getCurrentStream(0), stream);
    EXPECT_EQ(at::accelerator::getCurrentStream(1), default_stream(1));
    x.add_(1);
    EXPECT_THAT(trace_of(stream), ElementsAre("aten::add"));
  }
  EXPECT_EQ(at::accelerator::getCurrentStream(0), default_stream(0));
  synchronize();
  x.add_(1);
  EXPECT_THAT(trace_of(default_stream(0)), ElementsAre("aten::add"));
}

TEST_F(StreamTest, OperatorsGoToTheDeviceOfTheirTensors) {
  const Tensor x = torch::zeros({1}, hpu(2));
  take_trace();
  const c10::DeviceGuard guard(hpu(1));
  const Tensor y = x + 1;
  EXPECT_EQ(y.device(), hpu(2));
  EXPECT_THAT(trace_of(default_stream(2)), ElementsAre("aten::add"));
}

TEST_F(StreamTest, IsDelayedAsSet) {
  const c10::Stream before = new_stream(0);
  before.synchronize();
  set_delays({1, /*probability=*/1, /*seconds=*/1e-3});
  for (const c10::Stream& stream : {before, new_stream(0)}) {
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < 50; ++k) {
      Simulation::get().enqueue(stream, {"nothing", {}, [] {}});
    }
    stream.synchronize();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    // 25e-3 on average; the bound is more than seven standard deviations less.
    EXPECT_GE(took.count(), 10e-3);
  }
}

class EventTest : public SimulatedTest {};

TEST_F(EventTest, IsReachedWhenTheStreamIsThere) {
  c10::Event event(kDeviceType);
  EXPECT_TRUE(event.query()) << "not recorded yet";
  Gate gate(default_stream(0));
  event.record(default_stream(0));
  EXPECT_FALSE(event.query());
  gate.open();
  event.synchronize();
  EXPECT_TRUE(event.query());
}

TEST_F(EventTest, DoesNotStandForWhatComesAfterIt) {
  c10::Event event(kDeviceType);
  event.record(default_stream(0));
  Gate gate(default_stream(0));
  event.synchronize();
  EXPECT_TRUE(event.query());
  EXPECT_FALSE(default_stream(0).query());
}

TEST_F(EventTest, SynchronisingItWaits) {
  c10::Event event(kDeviceType);
  const Tensor x = torch::zeros({1}, hpu(0));
  busy(x, 2e-3);
  x.add_(1);
  event.record(default_stream(0));
  event.synchronize();
  EXPECT_THAT(memory(x), ElementsAre(1));
}

TEST_F(EventTest, HoldsUpAStreamThatWaitsForIt) {
  const c10::Stream first = default_stream(0), second = new_stream(1);
  const Tensor x = torch::zeros({1}, hpu(0));
  const Tensor y = torch::zeros({1}, hpu(1));
  synchronize();
  Gate gate(first);
  c10::Event event(kDeviceType);
  event.record(first);
  second.wait(event);
  // Later work of the second stream comes after the event, also this one.
  c10::Event behind(kDeviceType);
  behind.record(second);
  {
    const c10::StreamGuard guard(second);
    y.add_(1);
  }
  // The host and other streams continue.
  new_stream(1).synchronize();
  EXPECT_FALSE(second.query());
  EXPECT_FALSE(behind.query());
  EXPECT_THAT(memory(y), ElementsAre(0));
  gate.open();
  second.synchronize();
  EXPECT_TRUE(event.query());
  EXPECT_THAT(memory(y), ElementsAre(1));
}

TEST_F(EventTest, OrdersTwoStreams) {
  const c10::Stream second = new_stream(0);
  const Tensor x = torch::zeros({1}, hpu(0));
  Tensor y;
  busy(x, 2e-3);
  x.add_(1);
  c10::Event event(kDeviceType);
  event.record(default_stream(0));
  {
    const c10::StreamGuard guard(second);
    event.block(second);
    y = x + 1;
  }
  synchronize();
  EXPECT_THAT(memory(y), ElementsAre(2));
}

TEST_F(EventTest, WhatNoneOrdersIsReported) {
  const c10::Stream second = new_stream(0);
  const Tensor x = torch::zeros({3}, hpu(0));
  {
    const c10::StreamGuard guard(second);
    x.narrow(0, 1, 1).add_(1);
  }
  EXPECT_THAT(take_races(),
              ElementsAre("no wait orders aten::zero_ on hpu:0 default stream, "
                          "writing, and aten::add on hpu:0 stream " +
                          std::to_string(second.id()) +
                          ", reading: bytes 4 to 8 of a block of 64"));
  synchronize();
}

thread_local std::optional<std::int64_t> microbatch_here;

TEST_F(EventTest, ReportsTellTheMicroBatchesOfTheThreads) {
  set_microbatch([] { return microbatch_here; });
  microbatch_here = 4;
  const Tensor x = torch::zeros({3}, hpu(0));
  std::thread([&] {
    microbatch_here = 2;
    const c10::StreamGuard guard(new_stream(0));
    x.mul_(2);
  }).join();
  set_microbatch(nullptr);
  EXPECT_THAT(take_races(),
              ElementsAre(AllOf(HasSubstr("default stream (micro-batch 4)"),
                                HasSubstr("(micro-batch 2), reading"))));
  const auto trace = take_trace();
  ASSERT_THAT(trace, SizeIs(2));
  EXPECT_EQ(trace[0].name, "aten::zero_");
  EXPECT_EQ(trace[0].stream, default_stream(0));
  EXPECT_EQ(trace[0].microbatch, 4);
  EXPECT_EQ(trace[1].name, "aten::mul");
  EXPECT_EQ(trace[1].microbatch, 2);
  synchronize();
}

class HostWaitTest : public SimulatedTest {
 protected:
  // Returns how often the host waits in `run`.
  template <typename Run>
  static std::int64_t waits(Run run) {
    const std::int64_t before = host_waits();
    run();
    return host_waits() - before;
  }
};

TEST_F(HostWaitTest, IsCounted) {
  const Tensor x = torch::ones({4}, hpu(0));
  c10::Event event(kDeviceType);
  event.record(default_stream(0));
  EXPECT_EQ(waits([&] { event.synchronize(); }), 1);
  EXPECT_EQ(waits([&] { default_stream(0).synchronize(); }), 1);
  EXPECT_EQ(waits([&] { at::accelerator::synchronizeDevice(0); }), 1);
  EXPECT_EQ(waits([&] { synchronize(); }), kDevices);
  EXPECT_EQ(waits([&] { x.cpu(); }), 1);
  EXPECT_EQ(waits([&] { torch::ones({4}).to(hpu(0)); }), 1);
  EXPECT_EQ(waits([&] { x[0].item(); }), 1);
  EXPECT_EQ(waits([&] { x.equal(x); }), 1);
  EXPECT_EQ(waits([&] { x.nonzero(); }), 1);
}

TEST_F(HostWaitTest, IsNotWhatOperatorsEventsAndCopiesDo) {
  EXPECT_EQ(waits([&] {
              const Tensor x = torch::rand({4, 4}, hpu(0)).requires_grad_();
              torch::conv1d(x, torch::rand({4, 4, 1}, hpu(0)))
                  .mm(x)
                  .softmax(1)
                  .sum()
                  .backward();
              x.index({torch::arange(2, hpu(0))});
              Tensor y = torch::zeros({4}, hpu(0));
              y.index_put_({torch::arange(2, hpu(0))}, 5);
              x.to(hpu(1));
              x.to(torch::kCPU, /*non_blocking=*/true);
              torch::ones({4}).to(hpu(0), /*non_blocking=*/true);
              c10::Event event(kDeviceType);
              event.record(default_stream(0));
              event.query();
              event.block(default_stream(1));
              default_stream(0).query();
            }),
            0);
}

TEST_F(HostWaitTest, IsKnownToTheOrder) {
  const c10::Stream second = new_stream(0);
  const Tensor x = torch::zeros({1}, hpu(0));
  default_stream(0).synchronize();
  {
    const c10::StreamGuard guard(second);
    x.add_(1);
    second.synchronize();
  }
  EXPECT_THAT(take_races(), IsEmpty());
}

TEST_F(HostWaitTest, ForANumberNeedsAnOrderLikeAnyOther) {
  const Tensor x = torch::full({1}, 3, hpu(0));
  {
    const c10::StreamGuard guard(new_stream(0));
    x.item();
  }
  EXPECT_THAT(take_races(),
              ElementsAre(HasSubstr("aten::_local_scalar_dense")));
}

class FailureTest : public SimulatedTest {
 protected:
  // Enqueues an operator whose error appears only when it runs.
  static void fail(int index = 7) {
    torch::embedding(torch::zeros({2, 3}, hpu(0)),
                     torch::full({1}, index, torch::dtype(torch::kLong))
                         .to(hpu(0), /*non_blocking=*/true));
  }
  static void expect_usable() {
    EXPECT_THAT(values(torch::ones({2}, hpu(0)) + 1), ElementsAre(2, 2));
  }
  static constexpr char kError[] = "index out of range in self";
};

TEST_F(FailureTest, SurfacesAtTheNextSynchronisation) {
  const std::vector<std::pair<std::string, void (*)()>> ways = {
      {"all", [] { synchronize(); }},
      {"stream", [] { default_stream(0).synchronize(); }},
      {"device", [] { at::accelerator::synchronizeDevice(0); }},
      {"event",
       [] {
         c10::Event event(kDeviceType);
         event.record(default_stream(0));
         event.synchronize();
       }},
  };
  for (const auto& [name, wait] : ways) {
    {
      Gate gate(default_stream(0));
      fail();
    }
    EXPECT_THAT(error_of(wait), HasSubstr(kError)) << name;
    EXPECT_EQ(error_of(wait), "") << name << ": told once";
    expect_usable();
  }
}

TEST_F(FailureTest, SurfacesAtTheNextOperatorOnceItHasHappened) {
  const Tensor x = torch::ones({2}, hpu(0));
  fail();
  at::accelerator::getCurrentStream(0);
  Simulation::get().quiesce(0);
  EXPECT_THAT(error_of([&] { x.add_(1); }), HasSubstr(kError));
  expect_usable();
  EXPECT_THAT(values(x), ElementsAre(1, 1)) << "the operator was not given";
}

TEST_F(FailureTest, TheFirstOfSeveralIsTold) {
  {
    Gate gate(default_stream(0));
    fail();
    torch::full({2}, 5, torch::dtype(torch::kLong).device(hpu(0)))
        .gather(0, torch::full({1}, 9, torch::dtype(torch::kLong))
                       .to(hpu(0), /*non_blocking=*/true));
  }
  EXPECT_THAT(error_of([] { synchronize(); }), HasSubstr(kError));
  EXPECT_EQ(error_of([] { synchronize(); }), "");
}

// ---- Tests what makes hosts wait although a program does not ask for it.

using at::Tensor;

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
  // Runs `part` on another thread while `stream` is blocked, and expects that
  // it ends after the stream has been let go.
  template <typename Part>
  void expect_waits_for(const c10::Stream& stream, Part part) {
    Order order;
    Gate gate(stream);
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
  expect_waits_for(new_stream(0), [&] { x.tanh(); });
  // Now it is loaded.
  Gate gate(new_stream(0));
  x.tanh();
}

TEST_F(HostCostsTest, AFullDeviceWaitsUntilItIsIdle) {
  const Tensor x = at::ones({100}).to(hpu(0));
  synchronize();
  set_memory_limit(0, bytes_in_use(0));
  expect_waits_for(new_stream(0), [&] {
    EXPECT_THROW(at::empty({100}, x.options()), c10::OutOfMemoryError);
  });
}

TEST_F(HostCostsTest, AFullStreamBlocksLaunches) {
  const Tensor x = at::ones({2}).to(hpu(0));
  synchronize();
  set_host_costs({/*most_launches=*/3, 0, false});
  expect_waits_for(default_stream(0), [&] {
    for (int k = 0; k < 5; ++k) x.add_(1);
  });
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
