// Runs on the simulated accelerators.
#include "gpipe/runtime/cell/kept_tensors.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using at::Tensor;
using gpipe::testing::error_of;
using internal::Copier;
using internal::KeptTensors;
using internal::SavedTensorScope;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kNumbers = 64, kBytes = kNumbers * 8;

Tensor numbers() {
  return at::linspace(0.5, 1, kNumbers, at::TensorOptions(at::kDouble));
}

int64_t in_use() {
  synchronize();
  return bytes_in_use(0);
}

class KeptTensorsTest : public SimulatedTest {
 protected:
  // Returns a function of x and w that keeps two tensors of its own, one of
  // them three times, and w.
  static Tensor function(const Tensor& x, const Tensor& w) {
    const Tensor y = x.exp();
    return ((y * y.view({8, 8}).view({kNumbers})).sin() * w).sum();
  }

  // Computes `loss`, and keeps its tensors.
  void compute() {
    const SavedTensorScope scope(kept.get());
    loss = function(x, w);
  }

  // Runs the backward, and expects the gradients of the plain function.
  void expect_gradients() {
    kept->before_backward();
    const auto grads = torch::autograd::grad({loss}, {x, w});
    const Tensor plain_x = numbers().requires_grad_();
    const Tensor plain_w = numbers().requires_grad_();
    const auto expected =
        torch::autograd::grad({function(plain_x, plain_w)}, {plain_x, plain_w});
    EXPECT_TRUE(grads[0].cpu().equal(expected[0]));
    EXPECT_TRUE(grads[1].cpu().equal(expected[1]));
  }

  Copier copier{hpu(0)};
  std::unique_ptr<KeptTensors> kept = std::make_unique<KeptTensors>(hpu(0));
  Tensor x = numbers().to(hpu(0)).requires_grad_();
  Tensor w = numbers().to(hpu(0)).requires_grad_();
  Tensor loss;
};

TEST_F(KeptTensorsTest, CopiesEachStorageOnceAndReleasesIt) {
  const int64_t before = in_use();
  compute();
  // y, its square, the sine, and the loss.
  EXPECT_EQ(in_use(), before + 3 * kBytes + 8);
  kept->offload(copier, {}, nullptr);
  copier.finish();
  EXPECT_EQ(in_use(), before + 8);
  kept->reload(copier, nullptr);
  EXPECT_EQ(in_use(), before + 3 * kBytes + 8);
  expect_gradients();
}

TEST_F(KeptTensorsTest, HasTheBitsAlsoIfNothingIsCopied) {
  compute();
  kept->reload(copier, nullptr);
  expect_gradients();
}

TEST_F(KeptTensorsTest, LeavesWhatOthersHold) {
  const double* const memory = w.const_data_ptr<double>();
  compute();
  const Tensor held = x.exp();  // not the kept one
  Tensor shared;
  {
    const SavedTensorScope scope(kept.get());
    shared = x.detach().requires_grad_().exp();
  }
  const int64_t before = in_use();
  kept->offload(copier, {}, nullptr);
  copier.finish();
  EXPECT_EQ(in_use(), before - 3 * kBytes);
  EXPECT_EQ(w.const_data_ptr<double>(), memory);
  EXPECT_TRUE(shared.cpu().equal(held.cpu()));
}

TEST_F(KeptTensorsTest, CopiesWhatIsOnItsWayToAnotherDevice) {
  Tensor input = x.detach().requires_grad_(), output;
  {
    const SavedTensorScope scope(kept.get());
    output = input.exp();
  }
  loss = output.sum();
  std::optional<Tensor> leaving = output.detach();
  output.reset();
  const int64_t before = in_use();
  kept->offload(copier, {leaving->storage().unsafeGetStorageImpl()}, nullptr);
  copier.finish();
  EXPECT_EQ(in_use(), before);
  leaving.reset();
  EXPECT_EQ(in_use(), before - kBytes);
  kept->reload(copier, nullptr);
  kept->before_backward();
  EXPECT_TRUE(
      torch::autograd::grad({loss}, {input})[0].cpu().equal(numbers().exp()));
}

TEST_F(KeptTensorsTest, ABackwardInBetweenIsAnError) {
  compute();
  kept->offload(copier, {}, nullptr);
  EXPECT_THAT(error_of([&] {
                torch::autograd::grad({loss}, {x, w}, {}, /*retain=*/true);
              }),
              HasSubstr("that the schedule has copied to the host"));
  gpipe::testing::settle_engine(hpu(0));
  kept->reload(copier, nullptr);
  expect_gradients();
}

TEST_F(KeptTensorsTest, AFullDeviceChangesNothing) {
  compute();
  kept->offload(copier, {}, nullptr);
  copier.finish();
  set_memory_limit(0, in_use() + 2 * kBytes);
  EXPECT_THAT(error_of([&] { kept->reload(copier, nullptr); }),
              StartsWith("c10::OutOfMemoryError: "));
  set_memory_limit(0, std::nullopt);
  kept->reload(copier, nullptr);
  expect_gradients();
}

TEST_F(KeptTensorsTest, ReportsAChangeInPlace) {
  for (const bool offloads : {false, true}) {
    kept = std::make_unique<KeptTensors>(hpu(0));
    Tensor y;
    {
      const SavedTensorScope scope(kept.get());
      y = x.exp();
    }
    y.detach().add_(1);  // shares the version
    loss = y.sum();
    y.reset();
    if (offloads) {
      kept->offload(copier, {}, nullptr);
      kept->reload(copier, nullptr);
    }
    kept->before_backward();
    EXPECT_THAT(
        error_of([&] { torch::autograd::grad({loss}, {x}); }),
        HasSubstr("a tensor of type HPUDoubleType and sizes [64] that a "
                  "backward needs has been changed in place since the forward: "
                  "it is at version 1, but was at version 0; change a copy "
                  "instead"));
    gpipe::testing::settle_engine(hpu(0));
  }
}

TEST_F(KeptTensorsTest, ReleasesEverythingWithTheGraph) {
  const int64_t before = in_use();
  for (int steps = 0; steps < 3; ++steps) {
    compute();
    if (steps > 0) kept->offload(copier, {}, nullptr);
    if (steps > 1) kept->reload(copier, nullptr);
    loss.reset();
    kept = std::make_unique<KeptTensors>(hpu(0));
    copier.finish();
    EXPECT_EQ(in_use(), before) << steps;
  }
}

}  // namespace
}  // namespace gpipe::simulated
