#include "gpipe/testing/simulated/copy.h"

#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <optional>
#include <vector>

#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/tensor_memory.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using torch::Tensor;

class CopyTest : public SimulatedTest {};

bool same(const Tensor& actual, const Tensor& expected) {
  return actual.dtype() == expected.dtype() && actual.cpu().equal(expected);
}

TEST_F(CopyTest, FromTheHostAndBack) {
  const Tensor host = torch::randn({3, 5});
  const Tensor there = host.to(hpu(2));
  EXPECT_EQ(there.device(), hpu(2));
  const Tensor back = there.cpu();
  EXPECT_TRUE(back.device().is_cpu());
  EXPECT_TRUE(back.equal(host));
}

TEST_F(CopyTest, WithinADevice) {
  const Tensor host = torch::randn({3, 5}), x = host.to(hpu(1));
  EXPECT_TRUE(same(x.clone(), host));
  EXPECT_TRUE(same(torch::empty_like(x).copy_(x), host));
  EXPECT_EQ(x.to(hpu(1)).data_ptr(), x.data_ptr()) << "is none";
}

TEST_F(CopyTest, BetweenDevices) {
  const Tensor host = torch::randn({3, 5});
  const Tensor there = host.to(hpu(0)).to(hpu(3));
  EXPECT_EQ(there.device(), hpu(3));
  EXPECT_TRUE(same(there, host));
}

TEST_F(CopyTest, ChangesTheTypeOnTheWay) {
  const Tensor host = torch::randn({20}) * 10;
  const auto on = [](int device, torch::ScalarType type) {
    return torch::dtype(type).device(hpu(device));
  };
  for (const auto type : {torch::kDouble, torch::kHalf, torch::kBFloat16,
                          torch::kLong, torch::kInt, torch::kBool}) {
    const Tensor expected = host.to(type);
    const Tensor x = host.to(hpu(0));
    EXPECT_TRUE(same(host.to(on(0, type)), expected)) << type;
    EXPECT_TRUE(same(x.to(type), expected)) << type;
    EXPECT_TRUE(same(x.to(on(1, type)), expected)) << type;
    EXPECT_TRUE(same(x.to(torch::dtype(type).device(torch::kCPU)), expected))
        << type;
    EXPECT_TRUE(
        same(expected.to(on(0, torch::kFloat)), expected.to(torch::kFloat)))
        << type;
  }
}

TEST_F(CopyTest, OfTensorsThatAreNotContiguous) {
  const Tensor host =
      torch::arange(24, torch::dtype(torch::kFloat)).view({4, 6});
  const auto views = [](const Tensor& x) {
    return std::vector<Tensor>{x.t(), x.slice(1, 1, 6, 2), x.select(1, 3),
                               x.narrow(0, 2, 1).expand({3, 6})};
  };
  const Tensor x = host.to(hpu(0));
  for (std::size_t k = 0; k < views(host).size(); ++k) {
    const Tensor expected = views(host)[k];
    EXPECT_TRUE(same(views(x)[k], expected)) << k << " to the host";
    EXPECT_TRUE(same(views(x)[k].contiguous(), expected)) << k << " within";
    EXPECT_TRUE(same(views(x)[k].to(hpu(1)), expected)) << k << " between";
    EXPECT_TRUE(same(expected.to(hpu(1)), expected)) << k << " from the host";
  }
}

TEST_F(CopyTest, FromTheHostTakesTheValuesOfNow) {
  Tensor host = torch::ones({2});
  Gate gate(default_stream(0));
  const Tensor x = host.to(hpu(0), /*non_blocking=*/true);
  host.fill_(9);
  gate.open();
  EXPECT_TRUE(same(x, torch::ones({2})));
}

TEST_F(CopyTest, FromTheHostWaitsUnlessToldNotTo) {
  const Tensor x = torch::zeros({1}, hpu(0));
  busy(x, 2e-3);
  x.copy_(torch::ones({1}));
  EXPECT_THAT(memory(x), ElementsAre(1));
}

TEST_F(CopyTest, ToTheHostWaitsUnlessToldNotTo) {
  const Tensor x = torch::zeros({1}, hpu(0));
  busy(x, 2e-3);
  x.add_(1);
  EXPECT_THAT(memory(x.cpu()), ElementsAre(1));
}

TEST_F(CopyTest, ToTheHostComesLaterIfToldNotToWait) {
  const Tensor x = torch::ones({2}, hpu(0));
  synchronize();
  Tensor host = torch::zeros({2});
  Gate gate(default_stream(0));
  host.copy_(x, /*non_blocking=*/true);
  EXPECT_THAT(memory(host), ElementsAre(0, 0));
  gate.open();
  default_stream(0).synchronize();
  EXPECT_THAT(memory(host), ElementsAre(1, 1));
}

TEST_F(CopyTest, ToTheHostNeedsNoTargetThatLives) {
  const Tensor x = torch::ones({2000}, hpu(0));
  Gate gate(default_stream(0));
  x.to(torch::kCPU, /*non_blocking=*/true);
  gate.open();
  synchronize();
}

TEST_F(CopyTest, ToTheHostIsAReadThatMustBeOrdered) {
  const Tensor x = torch::ones({2}, hpu(0));
  {
    const c10::StreamGuard guard(new_stream(0));
    x.cpu();
  }
  EXPECT_THAT(take_races(), ElementsAre(HasSubstr("a copy to the host on")));
}

TEST_F(CopyTest, FromTheHostIsAWriteThatMustBeOrdered) {
  const Tensor x = torch::ones({2}, hpu(0));
  {
    const c10::StreamGuard guard(new_stream(0));
    x.copy_(torch::zeros({2}));
  }
  EXPECT_THAT(take_races(), ElementsAre(HasSubstr("a copy from the host on")));
}

TEST_F(CopyTest, BetweenDevicesIsOnTheStreamOfTheSource) {
  const Tensor x = torch::ones({2}, hpu(0));
  const c10::Stream from = new_stream(0), to = new_stream(1);
  synchronize();
  take_trace();
  {
    const c10::StreamGuard source(from);
    const c10::StreamGuard target(to);
    x.to(hpu(1));
  }
  synchronize();
  const auto trace = take_trace();
  ASSERT_THAT(trace, SizeIs(2));
  EXPECT_EQ(trace[0].name, "a copy to another device");
  EXPECT_EQ(trace[0].stream, from);
  EXPECT_EQ(trace[0].other, to);
  EXPECT_EQ(trace[1].name, "the overwriting of freed memory");
  EXPECT_EQ(trace[1].stream, to);
  EXPECT_EQ(trace[1].other, std::nullopt);
}

TEST_F(CopyTest, BetweenDevicesComesBeforeTheFutureOfTheTarget) {
  const Tensor x = torch::ones({1}, hpu(0));
  const Tensor y = torch::zeros({1}, hpu(1));
  synchronize();
  Gate gate(default_stream(0));
  y.copy_(x);
  y.add_(1);
  EXPECT_FALSE(default_stream(1).query());
  EXPECT_THAT(memory(y), ElementsAre(0));
  gate.open();
  default_stream(1).synchronize();
  EXPECT_THAT(memory(y), ElementsAre(2));
}

TEST_F(CopyTest, BetweenDevicesComesAfterThePastOfTheTarget) {
  const Tensor x = torch::ones({1}, hpu(0));
  const Tensor y = torch::zeros({1}, hpu(1));
  Tensor z;
  {
    Gate gate(default_stream(1));
    z = y + 5;
    y.copy_(x);
    // The copy also blocks the source's stream.
    EXPECT_FALSE(default_stream(0).query());
  }
  EXPECT_TRUE(same(z, torch::full({1}, 5.f)));
  EXPECT_TRUE(same(y, torch::ones({1})));
}

class CopyCostTest : public SimulatedTest {
 protected:
  // Returns how many seconds `run` takes until all devices are idle.
  template <typename Run>
  static double seconds(Run run) {
    set_delays({});
    synchronize();
    const auto start = std::chrono::steady_clock::now();
    run();
    synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start)
        .count();
  }
};

TEST_F(CopyCostTest, IsPaidByEachCopyThatLeavesADeviceOrComesToOne) {
  const Tensor host = torch::ones({4}), x = host.to(hpu(0));
  set_copy_cost({/*latency=*/3e-3, /*seconds_per_byte=*/0});
  EXPECT_GE(seconds([&] { host.to(hpu(0)); }), 3e-3);
  EXPECT_GE(seconds([&] { x.cpu(); }), 3e-3);
  EXPECT_GE(seconds([&] { x.to(hpu(1)); }), 3e-3);
  EXPECT_GE(seconds([&] { x.to(hpu(1)).to(hpu(2)).cpu(); }), 9e-3);
}

TEST_F(CopyCostTest, GrowsWithTheBytes) {
  const Tensor x = torch::ones({1000}, hpu(0));
  set_copy_cost({/*latency=*/0, /*seconds_per_byte=*/2e-6});
  EXPECT_GE(seconds([&] { x.to(hpu(1)); }), 8e-3);
  EXPECT_GE(seconds([&] { x.cpu(); }), 8e-3);
}

}  // namespace
}  // namespace gpipe::simulated
