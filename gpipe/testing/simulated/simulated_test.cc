#include "gpipe/testing/simulated/simulated.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/simulation.h"
#include "gpipe/testing/simulated/tensor_memory.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using ::gpipe::testing::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using torch::Tensor;

class StreamTest : public SimulatedTest {};

// Returns the current contents of the memory, without waiting. For work that is
// done or blocked.
std::vector<float> memory(const Tensor& tensor) {
  const Tensor host = host_alias(tensor).contiguous();
  return {host.data_ptr<float>(), host.data_ptr<float>() + host.numel()};
}

std::vector<float> values(const Tensor& tensor) { return memory(tensor.cpu()); }

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

TEST_F(StreamTest, IsIdleAsSoonAsTheHostHasWaitedForIt) {
  const c10::Stream stream = default_stream(0);
  const Tensor x = torch::zeros({1}, hpu(0));
  for (int k = 0; k < 300; ++k) {
    x.add_(1);
    stream.synchronize();
    ASSERT_TRUE(stream.query()) << "the " << k << "th time";
  }
}

TEST_F(StreamTest, SynchronisingItWaits) {
  const Tensor x = torch::zeros({1}, hpu(0));
  busy(x, 2e-3);
  x.add_(1);
  default_stream(0).synchronize();
  EXPECT_THAT(memory(x), ElementsAre(1));
}

TEST_F(StreamTest, SynchronisingItDoesNotWaitForOthers) {
  const c10::Stream other = new_stream(0);
  Gate gate(other);
  default_stream(0).synchronize();
  EXPECT_FALSE(other.query());
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

TEST_F(StreamTest, SynchronisingADeviceDoesNotWaitForOthers) {
  Gate gate(default_stream(1));
  at::accelerator::synchronizeDevice(0);
  EXPECT_FALSE(default_stream(1).query());
}

TEST_F(StreamTest, SynchroniseWaitsForAllDevices) {
  std::vector<Tensor> tensors;
  for (int k = 0; k < kDevices; ++k) {
    tensors.push_back(torch::zeros({1}, hpu(k)));
    busy(tensors.back(), 1e-3);
    tensors.back().add_(k);
  }
  synchronize();
  for (int k = 0; k < kDevices; ++k) {
    EXPECT_THAT(memory(tensors[k]), ElementsAre(k));
  }
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

TEST_F(StreamTest, NewOnesAreNobodyElses) {
  const c10::Stream a = new_stream(0), b = new_stream(0);
  EXPECT_NE(a, b);
  EXPECT_NE(a, default_stream(0));
  EXPECT_NE(b, default_stream(0));
  EXPECT_EQ(a.device(), hpu(0));
  EXPECT_EQ(new_stream(3).device(), hpu(3));
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

TEST_F(StreamTest, TheCurrentOneIsThatOfTheThread) {
  const c10::Stream stream = new_stream(0);
  const c10::StreamGuard guard(stream);
  std::thread([&] {
    EXPECT_EQ(at::accelerator::getCurrentStream(0), default_stream(0));
    const c10::StreamGuard other(new_stream(0));
  }).join();
  EXPECT_EQ(at::accelerator::getCurrentStream(0), stream);
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

TEST_F(StreamTest, TakesWorkFromManyThreads) {
  const Tensor x = torch::arange(8, torch::dtype(torch::kFloat)).to(hpu(0));
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::optional<c10::StreamGuard> guard;
      if (t > 0) guard.emplace(new_stream(0));
      Tensor y = x;
      for (int k = 0; k < 50; ++k) y = y + t;
      results[t] = values(y.narrow(0, 7, 1));
      default_stream(0).synchronize();
    });
  }
  for (auto& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t) {
    EXPECT_THAT(results[t], ElementsAre(7 + 50 * t));
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

TEST_F(EventTest, IsThatOfTheLastRecord) {
  c10::Event event(kDeviceType);
  Gate gate(default_stream(0));
  event.record(default_stream(0));
  gate.open();
  event.synchronize();
  Gate next(default_stream(0));
  event.record(default_stream(0));
  EXPECT_FALSE(event.query());
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

TEST_F(HostWaitTest, ForANumberLeavesNothingBehind) {
  Tensor x = torch::full({1}, 3, hpu(0));
  default_stream(0).synchronize();
  {
    const c10::StreamGuard guard(new_stream(0));
    EXPECT_EQ(x.item<float>(), 3);
    EXPECT_TRUE(x.equal(x));
  }
  x.reset();  // requires no record, because no stream reads it later
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

class DeviceTest : public SimulatedTest {};

TEST_F(DeviceTest, ThereAreFour) {
  EXPECT_EQ(at::accelerator::getAccelerator(), torch::kHPU);
  EXPECT_EQ(at::accelerator::deviceCount(), 4);
}

TEST_F(DeviceTest, AFifthIsRefused) {
  EXPECT_THAT(
      error_of([] { torch::zeros({1}, hpu(4)); }),
      HasSubstr("there is no device hpu:4 (simulated accelerators: 4)"));
  EXPECT_THAT(error_of([] { new_stream(4); }), HasSubstr("no device hpu:4"));
  EXPECT_THAT(error_of([] { at::accelerator::getCurrentStream(4); }),
              HasSubstr("no device hpu:4"));
  EXPECT_THAT(error_of([] { at::accelerator::setDeviceIndex(4); }),
              HasSubstr("no device hpu:4"));
}

TEST_F(DeviceTest, OneWithoutAnIndexIsTheCurrentOne) {
  const torch::Device any(torch::kHPU);
  EXPECT_EQ(torch::zeros({1}, any).device(), hpu(0));
  {
    const c10::DeviceGuard guard(hpu(3));
    EXPECT_EQ(at::accelerator::getDeviceIndex(), 3);
    EXPECT_EQ(torch::zeros({1}, any).device(), hpu(3));
    EXPECT_EQ(torch::zeros({1}).to(any).device(), hpu(3));
    const c10::impl::VirtualGuardImpl impl(kDeviceType);
    EXPECT_EQ(impl.getNewStream(any).device(), hpu(3));
    const Tensor x = torch::zeros({1}, any);
    busy(x, 2e-3);
    x.add_(1);
    impl.synchronizeDevice(-1);
    EXPECT_THAT(memory(x), ElementsAre(1));
  }
  EXPECT_EQ(torch::zeros({1}, any).device(), hpu(0));
}

TEST_F(DeviceTest, TheCurrentOneIsThatOfTheThread) {
  const c10::DeviceGuard guard(hpu(2));
  std::thread([] {
    EXPECT_EQ(at::accelerator::getDeviceIndex(), 0);
    at::accelerator::setDeviceIndex(1);
  }).join();
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 2);
}

TEST_F(DeviceTest, ExchangingTheCurrentOneGivesTheOneBefore) {
  EXPECT_EQ(at::accelerator::exchangeDevice(2), 0);
  EXPECT_EQ(at::accelerator::exchangeDevice(0), 2);
}

TEST_F(DeviceTest, OperatorsLeaveTheCurrentOne) {
  const c10::DeviceGuard guard(hpu(1));
  const Tensor x = torch::ones({2}, hpu(2));
  x.add_(1).sum().item();
  x.to(hpu(3));
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 1);
}

constexpr char kMixed[] =
    "Expected all tensors to be on the same device, but found at least two "
    "devices, ";

TEST_F(DeviceTest, MixingTwoIsRefused) {
  const Tensor a = torch::ones({2, 2}, hpu(0));
  Tensor b = torch::ones({2, 2}, hpu(1));
  const Tensor host = torch::ones({2, 2});
  const std::string two = std::string(kMixed) + "hpu:0 and hpu:1!";
  EXPECT_THAT(error_of([&] { a.add(b); }), HasSubstr(two));
  EXPECT_THAT(error_of([&] { a.mm(b); }), HasSubstr(two));
  EXPECT_THAT(error_of([&] { torch::cat({a, b}); }), HasSubstr(two));
  EXPECT_THAT(error_of([&] { torch::linear(a, b); }), HasSubstr(two));
  EXPECT_THAT(error_of([&] { a.add_(b); }), HasSubstr(two));
  EXPECT_THAT(error_of([&] { torch::mm_out(b, a, a); }),
              AllOf(HasSubstr(kMixed), HasSubstr("hpu:1")));
  EXPECT_THAT(error_of([&] { a.mm(host); }),
              HasSubstr(std::string(kMixed) + "hpu:0 and cpu!"));
  EXPECT_THAT(error_of([&] { host.mm(a); }),
              AllOf(HasSubstr(kMixed), HasSubstr("cpu"), HasSubstr("hpu:0")));
  EXPECT_THAT(error_of([&] { torch::cat({a, host}); }), HasSubstr(kMixed));
}

TEST_F(DeviceTest, MixingTwoIsRefusedForScalarsOfAnotherAccelerator) {
  const Tensor a = torch::ones({2}, hpu(0)), b = torch::ones({}, hpu(1));
  EXPECT_THAT(error_of([&] { a.mul(b); }),
              HasSubstr(std::string(kMixed) + "hpu:0 and hpu:1!"));
}

TEST_F(DeviceTest, ScalarsOfTheHostAreTaken) {
  const Tensor x = torch::ones({2}, hpu(1)), scalar = torch::tensor(3.0f);
  EXPECT_THAT(values(x * scalar), ElementsAre(3, 3));
  EXPECT_THAT(values(scalar - x), ElementsAre(2, 2));
  EXPECT_EQ((scalar - x).device(), hpu(1));
  EXPECT_THAT(values(x.add_(scalar)), ElementsAre(4, 4));
}

TEST_F(DeviceTest, ScalarsOfTheHostAreTakenAsTheyAreNow) {
  const Tensor x = torch::ones({2}, hpu(0)), scalar = torch::tensor(3.0f);
  Gate gate(default_stream(0));
  const Tensor y = x * scalar;
  scalar.fill_(100);
  gate.open();
  EXPECT_THAT(values(y), ElementsAre(3, 3));
}

TEST_F(DeviceTest, ScalarsOfTheHostAreNotWritten) {
  const Tensor x = torch::ones({}, hpu(0));
  Tensor scalar = torch::tensor(3.0f);
  EXPECT_THAT(error_of([&] { torch::mul_out(scalar, x, x); }),
              HasSubstr(kMixed));
}

TEST_F(DeviceTest, IndicesOfTheHostAreTaken) {
  const Tensor x = torch::arange(4, torch::dtype(torch::kFloat)).to(hpu(0));
  EXPECT_THAT(values(x.index({torch::tensor({3, 1})})), ElementsAre(3, 1));
  EXPECT_THAT(values(x.index({torch::tensor({true, false, true, false})})),
              ElementsAre(0, 2));
}

TEST_F(DeviceTest, AModuleGoesThereAndBack) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(3, 4),
                              torch::nn::BatchNorm1d(4));
  const Tensor x = torch::rand({5, 3});
  std::vector<Tensor> before;
  for (const Tensor& each : model->parameters()) before.push_back(each.clone());
  for (const Tensor& each : model->buffers()) before.push_back(each.clone());
  model->to(hpu(2));
  for (const Tensor& each : model->parameters()) {
    EXPECT_EQ(each.device(), hpu(2));
    EXPECT_TRUE(each.is_leaf() && each.requires_grad());
  }
  for (const Tensor& each : model->buffers()) EXPECT_EQ(each.device(), hpu(2));
  model->eval();
  const Tensor there = model->forward(x.to(hpu(2)));
  EXPECT_EQ(there.device(), hpu(2));
  model->to(torch::kCPU);
  EXPECT_TRUE(there.cpu().equal(model->forward(x)));
  std::vector<Tensor> after = model->parameters();
  for (const Tensor& each : model->buffers()) after.push_back(each);
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t k = 0; k < after.size(); ++k) {
    EXPECT_TRUE(after[k].device().is_cpu());
    EXPECT_TRUE(after[k].equal(before[k])) << k;
  }
}

TEST_F(DeviceTest, AutogradCrossesDevices) {
  torch::manual_seed(1);
  const Tensor x = torch::randn({4, 3}), a = torch::randn({3, 5}),
               b = torch::randn({5, 2});
  const auto grads = [&](const torch::Device& first,
                         const torch::Device& second) {
    std::vector<Tensor> leaves;
    for (const Tensor& each : {x.to(first), a.to(first), b.to(second)}) {
      leaves.push_back(each.detach().clone().requires_grad_());
    }
    const Tensor hidden = leaves[0].mm(leaves[1]).tanh();
    hidden.to(second).mm(leaves[2]).pow(2).sum().backward();
    std::vector<Tensor> grads;
    for (const Tensor& leaf : leaves) {
      EXPECT_EQ(leaf.grad().device(), leaf.device());
      grads.push_back(leaf.grad().cpu());
    }
    return grads;
  };
  const auto expected = grads(torch::kCPU, torch::kCPU);
  const auto actual = grads(hpu(0), hpu(1));
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_TRUE(actual[k].equal(expected[k])) << k;
  }
}

TEST_F(DeviceTest, BackwardRunsOnTheStreamOfTheForward) {
  const c10::Stream stream = new_stream(0);
  Tensor x;
  {
    const c10::StreamGuard guard(stream);
    x = torch::ones({2}, hpu(0)).requires_grad_();
    const Tensor loss = x.exp().sum();
    take_trace();
    loss.backward();
    stream.synchronize();
  }
  int multiplied = 0;
  for (const Given& each : take_trace()) {
    if (each.name != "aten::mul") continue;
    ++multiplied;
    EXPECT_EQ(each.stream, stream);
  }
  EXPECT_EQ(multiplied, 1);
}

class GeneratorTest : public SimulatedTest {
 protected:
  static at::Generator default_of(int device) {
    return at::globalContext().defaultGenerator(hpu(device));
  }
  static at::Generator seeded(int device, std::uint64_t seed) {
    at::Generator generator =
        at::globalContext()
            .getAcceleratorHooksInterface(kDeviceType)
            .getNewGenerator(static_cast<c10::DeviceIndex>(device));
    generator.set_current_seed(seed);
    return generator;
  }
  static Tensor draw(int device, std::optional<at::Generator> generator = {}) {
    return torch::randn({20}, std::move(generator), hpu(device));
  }
};

TEST_F(GeneratorTest, ThereIsADefaultOnePerDevice) {
  for (int k = 0; k < kDevices; ++k) {
    EXPECT_EQ(default_of(k).device(), hpu(k));
    EXPECT_EQ(default_of(k), default_of(k));
  }
  const c10::DeviceGuard guard(hpu(2));
  EXPECT_EQ(at::globalContext().defaultGenerator(torch::Device(torch::kHPU)),
            default_of(2));
  EXPECT_EQ(seeded(-1, 1).device(), hpu(2));
}

TEST_F(GeneratorTest, DefaultOnesAreSeededApart) {
  default_of(0).set_current_seed(5);
  default_of(1).set_current_seed(6);
  const Tensor a = draw(0).cpu(), b = draw(1).cpu();
  EXPECT_FALSE(a.equal(b));
  default_of(0).set_current_seed(6);
  EXPECT_TRUE(draw(0).cpu().equal(b));
  EXPECT_FALSE(draw(1).cpu().equal(b)) << "was seeded again";
}

TEST_F(GeneratorTest, DefaultOnesGoOn) {
  default_of(0).set_current_seed(5);
  const Tensor a = draw(0), b = draw(0);
  EXPECT_FALSE(a.equal(b));
}

TEST_F(GeneratorTest, ManualSeedSeedsThemAll) {
  torch::manual_seed(9);
  const Tensor expected = torch::randn({20});
  for (int k = 0; k < kDevices; ++k) {
    EXPECT_EQ(default_of(k).current_seed(), 9u);
    EXPECT_TRUE(draw(k).cpu().equal(expected));
  }
}

TEST_F(GeneratorTest, OnesOwnIsUsedAndAdvanced) {
  default_of(1).set_current_seed(3);
  const Tensor untouched = default_of(1).get_state();
  const at::Generator mine = seeded(1, 7);
  const Tensor a = draw(1, mine), b = draw(1, mine);
  EXPECT_FALSE(a.equal(b));
  EXPECT_TRUE(draw(1, seeded(1, 7)).equal(a));
  EXPECT_TRUE(default_of(1).get_state().equal(untouched));
}

TEST_F(GeneratorTest, NumbersAreThoseOfTheMomentOfTheCall) {
  at::Generator mine = seeded(0, 7);
  const Tensor before = mine.get_state();
  Gate gate(default_stream(0));
  const Tensor a = draw(0, mine);
  EXPECT_FALSE(mine.get_state().equal(before)) << "is advanced at once";
  mine.set_current_seed(8);
  gate.open();
  EXPECT_TRUE(a.equal(draw(0, seeded(0, 7))));
}

TEST_F(GeneratorTest, AStateIsTakenAndPutBack) {
  at::Generator mine = seeded(0, 7);
  draw(0, mine);
  const Tensor state = mine.get_state();
  const Tensor a = draw(0, mine);
  mine.set_state(state);
  EXPECT_TRUE(draw(0, mine).equal(a));
}

TEST_F(GeneratorTest, ACloneGoesOnFromTheSameState) {
  at::Generator mine = seeded(1, 7);
  draw(1, mine);
  at::Generator clone = mine.clone();
  EXPECT_EQ(clone.device(), hpu(1));
  const Tensor a = draw(1, mine), b = draw(1, clone);
  EXPECT_TRUE(a.equal(b));
  EXPECT_NE(clone, mine);
}

TEST_F(GeneratorTest, ThatOfAnotherDeviceIsRefused) {
  Tensor x = torch::zeros({4}, hpu(0));
  EXPECT_THAT(error_of([&] { x.normal_(0, 1, seeded(1, 7)); }),
              HasSubstr("Expected a generator of hpu:0 but found one of hpu:1 "
                        "(aten::normal_)"));
  EXPECT_THAT(
      error_of([&] { x.normal_(0, 1, at::detail::createCPUGenerator(7)); }),
      HasSubstr("Expected a generator of hpu:0 but found one of cpu"));
}

TEST_F(GeneratorTest, ARefusedCallDrawsNothing) {
  const Tensor before = default_of(0).get_state();
  Tensor x = torch::zeros({4}, hpu(0));
  EXPECT_NE(error_of([&] { x.normal_(0, -1); }), "");
  EXPECT_TRUE(default_of(0).get_state().equal(before));
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

TEST_F(FailureTest, OfTheShapesSurfacesAtOnce) {
  const Tensor x = torch::ones({2, 3}, hpu(0));
  EXPECT_THAT(error_of([&] { x.mm(x); }),
              HasSubstr("mat1 and mat2 shapes cannot be multiplied"));
  EXPECT_EQ(error_of([] { synchronize(); }), "");
}

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

TEST_F(FailureTest, DoesNotHoldUpWhatWasGivenBehindIt) {
  const Tensor x = torch::ones({2}, hpu(0));
  {
    Gate gate(default_stream(0));
    fail();
    x.add_(1);
  }
  EXPECT_THAT(error_of([] { synchronize(); }), HasSubstr(kError));
  EXPECT_THAT(values(x), ElementsAre(2, 2));
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

TEST_F(FailureTest, IsOfTheTypeThatLibTorchThrows) {
  fail();
  EXPECT_THAT(error_of([] { synchronize(); }), StartsWith("c10::IndexError: "));
}

}  // namespace
}  // namespace gpipe::simulated
