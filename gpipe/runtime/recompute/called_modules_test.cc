#include "gpipe/runtime/recompute/called_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <memory>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;
namespace nn = torch::nn;

// A module with a frozen parameter and a buffer, around a BatchNorm.
struct Counter : nn::Module {
  Tensor frozen = register_parameter("frozen", torch::ones({2}), false);
  Tensor count = register_buffer("count", torch::zeros({1}));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(3));
};

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (!a[k].is_same(b[k])) return false;
  }
  return true;
}

class CalledModulesTest : public ::testing::Test {
 protected:
  CalledModulesTest() { modules.add("0.", counter); }

  // Returns the copy of the only buffer that is no norm's.
  BufferValue copy_of_count() {
    const std::vector<BufferValue> all = modules.copy_buffers();
    EXPECT_EQ(all.size(), 4u);
    EXPECT_FALSE(all.back().is_norm);
    EXPECT_TRUE(all.back().buffer.is_same(counter->count));
    return all.back();
  }

  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
  CalledModules modules;
};

TEST_F(CalledModulesTest, ListModesParametersNormBuffersAndNames) {
  nn::Linear last(3, 1);
  last->eval();
  modules.add("1.", last.ptr());
  EXPECT_THAT(modules.training(), ElementsAre(true, true, false));
  EXPECT_TRUE(same(modules.parameters(),
                   {counter->frozen, counter->norm->weight, counter->norm->bias,
                    last->weight, last->bias}));
  EXPECT_TRUE(same(modules.norm_buffers(),
                   {counter->norm->running_mean, counter->norm->running_var,
                    counter->norm->num_batches_tracked}));
  EXPECT_EQ(modules.name_of(counter->norm->weight), "0.norm.weight");
  EXPECT_EQ(modules.name_of(counter->count), "0.count");
  EXPECT_EQ(modules.name_of(last->bias), "1.bias");
  EXPECT_EQ(modules.name_of(last->bias.detach()), "");
}

TEST_F(CalledModulesTest, BuffersThatAnOperatorUsesAsStatisticsAreOfANorm) {
  modules.add_norm_buffers({torch::ones({1}), counter->norm->running_mean});
  EXPECT_EQ(modules.norm_buffers().size(), 3u);
  EXPECT_FALSE(modules.is_norm_buffer(counter->count));
  modules.add_norm_buffers({counter->count});
  EXPECT_TRUE(modules.is_norm_buffer(counter->count));
  for (const BufferValue& each : modules.copy_buffers()) {
    EXPECT_TRUE(each.is_norm);
  }
}

TEST_F(CalledModulesTest, CopyABufferAgainOnlyIfItHasChanged) {
  const BufferValue first = copy_of_count();
  EXPECT_FALSE(first.value.is_alias_of(counter->count));
  EXPECT_TRUE(copy_of_count().value.is_same(first.value));
  counter->count.add_(5);
  EXPECT_TRUE(first.version.is_changed());
  const BufferValue later = copy_of_count();
  EXPECT_FALSE(later.version.is_changed());
  EXPECT_EQ(later.value.item<float>(), 5);
  EXPECT_EQ(first.value.item<float>(), 0);
}

TEST_F(CalledModulesTest, DoNotKeepCopiesOfBuffersAlive) {
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> copy(
      copy_of_count().value.getIntrusivePtr());
  EXPECT_TRUE(copy.expired());
  EXPECT_EQ(copy_of_count().value.item<float>(), 0);
}

}  // namespace
}  // namespace gpipe::internal
