#include "gpipe/meta.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/modules.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>

namespace gpipe {
namespace {

using torch::Tensor;
using torch::nn::Sequential;

// Returns the peak memory of this process in bytes.
int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

Sequential make(int64_t width) {
  using namespace torch::nn;  // NOLINT: the layers' names
  return Sequential(Conv2d(3, width, 3), BatchNorm2d(width), ReLU(),
                    AdaptiveAvgPool2d(1), Flatten(), Linear(width, width),
                    LayerNorm(LayerNormOptions({width})));
}

TEST(MetaGuardTest, BuildsAModelOfAnySizeWithoutMemory) {
  const int64_t before = peak_bytes();
  constexpr int64_t kWidth = 1'000'000;
  Sequential model{nullptr};
  {
    const MetaGuard meta;
    model = make(kWidth);
  }
  int64_t parameters = 0;
  for (const Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.is_meta());
    parameters += parameter.numel();
  }
  EXPECT_EQ(parameters,
            kWidth * 28 + 2 * kWidth + kWidth * kWidth + 3 * kWidth);
  EXPECT_LT(peak_bytes() - before, int64_t{1} << 26);
}

TEST(MetaGuardTest, RunsWhatItHasBuilt) {
  Sequential model{nullptr};
  {
    const MetaGuard meta;
    model = make(64);
  }
  const Tensor output =
      model->forward(torch::empty({100'000, 3, 200, 200}, at::kMeta));
  EXPECT_TRUE(output.is_meta());
  EXPECT_EQ(output.sizes(), (at::IntArrayRef{100'000, 64}));
  output.sum().backward();
  for (const Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  }
}

TEST(MetaGuardTest, DrawsNoRandomNumbers) {
  torch::manual_seed(1);
  const Tensor expected = torch::rand({3});
  torch::manual_seed(1);
  {
    const MetaGuard meta;
    make(64);
  }
  EXPECT_TRUE(torch::rand({3}).equal(expected));
}

TEST(MetaGuardTest, LeavesModulesAloneThatAreBuiltAfterIt) {
  { const MetaGuard meta; }
  EXPECT_TRUE(make(4)->parameters()[0].is_cpu());
}

}  // namespace
}  // namespace gpipe
