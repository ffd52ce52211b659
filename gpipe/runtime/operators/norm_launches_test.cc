// Tests how many operators deferred BatchNorm launches. Runs on the simulated
// accelerators only.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using internal::NormScope;
using internal::NormStatistics;

class NormLaunchesTest : public SimulatedTest {};

// BatchNorm layers on a device, and the statistics of some micro-batches.
struct Norms {
  std::vector<std::shared_ptr<torch::nn::BatchNorm1dImpl>> layers;
  std::unique_ptr<NormStatistics> statistics;

  Norms(int count, int microbatches) {
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    for (int k = 0; k < count; ++k) {
      layers.push_back(std::make_shared<torch::nn::BatchNorm1dImpl>(3 + k));
      layers.back()->to(hpu(0));
      modules.push_back(layers.back());
    }
    statistics = std::make_unique<NormStatistics>(modules);
    const NormScope scope(statistics.get(), /*record=*/true);
    for (int i = 0; i < microbatches; ++i) {
      for (int k = 0; k < count; ++k) {
        layers[k]->forward(torch::randn({4, 3 + k}).to(hpu(0)));
      }
    }
    synchronize();
  }
};

TEST_F(NormLaunchesTest, OfACommitDoNotDependOnTheNumberOfLayers) {
  for (const int microbatches : {1, 2, 8}) {
    for (const int layers : {1, 2, 20}) {
      const Norms norms(layers, microbatches);
      const Counts before = counts();
      norms.statistics->commit();
      const Counts taken = counts() - before;
      EXPECT_EQ(taken.launches, 28 + 7 * (microbatches - 1))
          << layers << " layers";
      EXPECT_EQ(taken.host_waits, 0);
    }
  }
}

TEST_F(NormLaunchesTest, OfADiscardDoNotDependOnTheNumberOfLayers) {
  for (const int layers : {1, 2, 20}) {
    const Norms norms(layers, 2);
    const Counts before = counts();
    norms.statistics->discard();
    EXPECT_EQ((counts() - before).launches, 3) << layers << " layers";
    norms.statistics->discard();
    EXPECT_EQ((counts() - before).launches, 3) << "nothing is left";
    for (const auto& each : norms.layers) {
      EXPECT_EQ(each->num_batches_tracked.item<int64_t>(), 0);
    }
  }
}

}  // namespace
}  // namespace gpipe::simulated
