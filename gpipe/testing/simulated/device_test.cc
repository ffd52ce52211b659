// Tests the devices, their generators, and the order of their operators.
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using ::gpipe::testing::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

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

TEST_F(GeneratorTest, ManualSeedSeedsThemAll) {
  torch::manual_seed(9);
  const Tensor expected = torch::randn({20});
  for (int k = 0; k < kDevices; ++k) {
    EXPECT_EQ(default_of(k).current_seed(), 9u);
    EXPECT_TRUE(draw(k).cpu().equal(expected));
  }
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

class OperatorTest : public SimulatedTest {};

TEST_F(OperatorTest, HasTheBitsOfOneThreadWhateverTheHostHas) {
  const int before = at::get_num_threads();
  const Tensor x = torch::randn({100000});
  at::set_num_threads(1);
  const Tensor expected = x.sum();
  at::set_num_threads(4);
  EXPECT_TRUE(x.to(hpu(0)).sum().cpu().equal(expected));
  at::set_num_threads(before);
}

TEST_F(OperatorTest, ATensorMayBeWrittenAgainBeforeItsReaderIsDone) {
  Tensor y;
  {
    Gate gate(default_stream(0));
    Tensor x = torch::ones({3}, hpu(0));
    y = x + x;
    x.fill_(100);
    x = Tensor();
  }
  EXPECT_TRUE(y.cpu().equal(torch::full({3}, 2.f)));
}

TEST_F(OperatorTest, BatchNormWritesItsStatisticsInTrainingOnly) {
  const Tensor x = torch::randn({4, 3}).to(hpu(0));
  const Tensor mean = torch::zeros({3}, hpu(0)), var = torch::ones({3}, hpu(0));
  const auto normalise = [&](bool training) {
    torch::batch_norm(x, {}, {}, mean, var, training, 0.1, 1e-5, false);
  };
  const auto races_of_two_streams = [&](bool training) {
    synchronize();
    normalise(training);
    const c10::StreamGuard guard(new_stream(0));
    normalise(training);
    return take_races();
  };
  EXPECT_THAT(races_of_two_streams(/*training=*/false), IsEmpty());
  EXPECT_THAT(races_of_two_streams(/*training=*/true),
              ElementsAre(HasSubstr("writing, and aten::native_batch_norm"),
                          HasSubstr("writing, and aten::native_batch_norm")));
  synchronize();
}

TEST_F(OperatorTest, RaisesTheVersionOfWhatItChanges) {
  const Tensor x = torch::ones({3}, hpu(0)).requires_grad_();
  const Tensor y = x.exp();
  y.add_(1);
  EXPECT_EQ(y._version(), 1);
  EXPECT_THAT(error_of([&] { y.sum().backward(); }),
              HasSubstr("has been modified by an inplace operation"));
}

}  // namespace
}  // namespace gpipe::simulated
