#include "training/state_on_host.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/simulated/simulated.h"

namespace gpipe {
namespace {

constexpr int64_t kElements = 1000;
constexpr int64_t kBytes = kElements * sizeof(float);

at::Tensor parameter_on(const c10::Device& device) {
  torch::manual_seed(1);
  return at::randn({kElements}).to(device).requires_grad_();
}

// Steps an Adam over `parameter` with random gradients, with the state on the
// host between the steps if `on_host` is true. Returns the bytes on device 0
// after each step.
std::vector<int64_t> train(at::Tensor& parameter, bool on_host) {
  torch::optim::Adam optimizer({parameter}, torch::optim::AdamOptions(0.1));
  std::optional<StateOnHost> state;
  if (on_host) state.emplace(optimizer);
  std::vector<int64_t> bytes;
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(100 + step);
    parameter.mutable_grad() = at::randn({kElements}).to(parameter.device());
    if (state) state->fetch();
    optimizer.step();
    if (state) state->store();
    simulated::synchronize();
    bytes.push_back(simulated::bytes_in_use(0));
  }
  return bytes;
}

TEST(StateOnHostTest, FreesTheDeviceBetweenStepsAndChangesNoBit) {
  const c10::Device device = testing::device(0);
  at::Tensor parameter = parameter_on(device);
  const int64_t before = simulated::bytes_in_use(0);
  // With each step: the gradient, and two moments.
  EXPECT_EQ(train(parameter, /*on_host=*/false),
            std::vector<int64_t>(3, before + 3 * kBytes));
  const at::Tensor expected = parameter.detach().cpu();
  parameter = at::Tensor();

  parameter = parameter_on(device);
  EXPECT_EQ(train(parameter, /*on_host=*/true),
            std::vector<int64_t>(3, before + kBytes));
  EXPECT_TRUE(at::equal(parameter.detach().cpu(), expected));
  EXPECT_TRUE(simulated::take_races().empty());
}

TEST(StateOnHostTest, LeavesTheStateOfParametersOnTheCpu) {
  at::Tensor parameter = parameter_on(c10::Device(c10::kCPU));
  at::Tensor same = parameter_on(c10::Device(c10::kCPU));
  train(parameter, /*on_host=*/true);
  train(same, /*on_host=*/false);
  EXPECT_TRUE(at::equal(parameter, same));
}

}  // namespace
}  // namespace gpipe
