#include "gpipe/runtime/recompute/buffers.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "gpipe/runtime/operators/norm_statistics.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::internal {
namespace {
using ::testing::ElementsAre;
using torch::Tensor;
namespace nn = torch::nn;

TEST(WatchedVersion, NoticesChangesInPlaceAlsoThroughViews) {
  at::Tensor tensor = at::ones({2});
  tensor.mul_(2);
  const WatchedVersion version(tensor);
  EXPECT_FALSE(version.is_changed());
  EXPECT_EQ(version.then(), tensor._version());
  tensor.mul_(2);
  tensor.view({1, 2}).add_(1);
  EXPECT_TRUE(version.is_changed());
  EXPECT_EQ(version.now(), version.then() + 2);
}

TEST(WatchedVersion, OfTensorsWithoutVersionsNeverChanges) {
  EXPECT_FALSE(WatchedVersion().is_changed());
  EXPECT_FALSE(WatchedVersion(at::Tensor()).is_changed());
  const c10::InferenceMode inference;
  at::Tensor tensor = at::ones({2});
  const WatchedVersion version(tensor);
  tensor.mul_(2);
  EXPECT_FALSE(version.is_changed());
}

TEST(WatchedVersion, DoesNotKeepTheMemory) {
  at::Tensor tensor = at::ones({2});
  const auto memory = tensor.storage().getWeakStorageImpl();
  const WatchedVersion version(tensor);
  tensor.reset();
  EXPECT_TRUE(memory.expired());
  EXPECT_FALSE(version.is_changed());
}

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
  EXPECT_THAT(*modules.modules(),
              ElementsAre(counter, counter->norm.ptr(), last.ptr()));
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

TEST_F(CalledModulesTest, FindSubmodulesThatHaveReplacedOthers) {
  const auto first = modules.modules();
  modules.add_norm_buffers({counter->count});
  modules.find_again();
  EXPECT_EQ(modules.modules(), first);
  counter->norm = counter->replace_module("norm", nn::BatchNorm1d(5));
  modules.find_again();
  EXPECT_THAT(*modules.modules(), ElementsAre(counter, counter->norm.ptr()));
  EXPECT_TRUE(
      same(modules.parameters(),
           {counter->frozen, counter->norm->weight, counter->norm->bias}));
  EXPECT_TRUE(same(modules.norm_buffers(),
                   {counter->norm->running_mean, counter->norm->running_var,
                    counter->norm->num_batches_tracked, counter->count}));
}

TEST_F(CalledModulesTest, FindTensorsThatAModuleRegistersLater) {
  const Tensor buffer = counter->register_buffer("late", torch::ones({1}));
  const Tensor frozen = counter->register_parameter(
      "late_weight", torch::ones({1}), /*requires_grad=*/false);
  EXPECT_FALSE(modules.has_buffer(buffer));
  modules.find_again();
  EXPECT_TRUE(modules.has_buffer(buffer));
  EXPECT_TRUE(contains(modules.parameters(), frozen));
  EXPECT_EQ(modules.name_of(buffer), "0.late");
}

TEST_F(CalledModulesTest, ForgetTheBuffersOfSubmodulesThatAreGone) {
  const auto owner = std::make_shared<nn::Module>();
  auto child = owner->register_module("child", std::make_shared<nn::Module>());
  at::Tensor buffer = child->register_buffer("count", torch::zeros({1}));
  modules.add("1.", owner);
  {
    const auto copies = modules.copy_buffers();
    buffer.add_(1);
    modules.copy_buffers();
  }
  EXPECT_TRUE(modules.is_changing(buffer));
  child = owner->replace_module("child", std::make_shared<nn::Module>());
  const c10::weak_intrusive_ptr<c10::TensorImpl> gone(buffer.getIntrusivePtr());
  buffer = at::Tensor();
  modules.find_again();
  EXPECT_TRUE(gone.expired());
}

TEST(WatchedModes, AreThoseOfTheConstruction) {
  nn::Linear a(1, 1), b(1, 1);
  b->eval();
  const WatchedModes modes(
      std::make_shared<const Modules>(Modules{a.ptr(), b.ptr()}));
  EXPECT_FALSE(modes.is_changed());
  a->eval();
  EXPECT_TRUE(modes.is_changed());
  a->train();
  EXPECT_FALSE(modes.is_changed());
  EXPECT_TRUE(modes.are_among({b.ptr(), nn::Linear(1, 1).ptr(), a.ptr()}));
  EXPECT_FALSE(modes.are_among({nn::Linear(1, 1).ptr(), a.ptr()}));
}

TEST_F(CalledModulesTest, BuffersThatAnOperatorUsesAsStatisticsAreOfANorm) {
  modules.add_norm_buffers({torch::ones({1}), counter->norm->running_mean});
  EXPECT_EQ(modules.norm_buffers().size(), 3u);
  EXPECT_FALSE(contains(modules.norm_buffers(), counter->count));
  modules.add_norm_buffers({counter->count});
  EXPECT_TRUE(contains(modules.norm_buffers(), counter->count));
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

// LibTorch counts neither change.
// LibTorch conjugates such a tensor when it is read, and has no memory for
// zeros that it knows.
TEST(BufferValue, OfAConjugateOrOfZerosWithoutMemoryIsRestored) {
  const torch::Tensor memory =
      torch::complex(torch::ones({2}), torch::arange(2.f));
  const torch::Tensor conjugate = memory.conj();
  const torch::Tensor zeros = torch::_efficientzerotensor({2}, torch::kFloat);
  ASSERT_TRUE(conjugate.is_conj() && zeros._is_zerotensor());
  auto values = copy_values({conjugate, zeros});
  for (const BufferValue& each : values) EXPECT_FALSE(each.is_changed());
  const torch::Tensor before = conjugate.clone();
  conjugate.add_(1);
  EXPECT_TRUE(values[0].is_changed());
  EXPECT_FALSE(values[1].is_changed());
  values.pop_back();
  write_values(values);
  EXPECT_TRUE(torch::equal(conjugate, before));
}

TEST_F(CalledModulesTest, NoticeChangesThroughDataOnTheCpu) {
  const BufferValue first = copy_of_count();
  counter->count.data().add_(5);
  EXPECT_FALSE(first.version.is_changed());
  EXPECT_TRUE(first.is_changed());
  const BufferValue second = copy_of_count();
  EXPECT_EQ(second.value.item<float>(), 5);
  counter->count.set_data(torch::full({1}, 6.F));
  EXPECT_TRUE(second.is_changed());
  EXPECT_EQ(copy_of_count().value.item<float>(), 6);
  EXPECT_FALSE(copy_of_count().is_changed());
}

TEST_F(CalledModulesTest, NoticeOtherMemoryOnAnAccelerator) {
  const c10::Device device = simulated::hpu(0);
  counter->to(device);
  const BufferValue first = copy_of_count();
  EXPECT_TRUE(copy_of_count().value.is_same(first.value));
  counter->count.set_data(torch::full({1}, 6.F).to(device));
  const BufferValue second = copy_of_count();
  EXPECT_EQ(second.value.item<float>(), 6);
  EXPECT_EQ(second.value.data_ptr(), copy_of_count().value.data_ptr());
  counter->count.set_data(torch::full({2}, 6.F).to(device));
  EXPECT_TRUE(second.is_changed());
}

TEST_F(CalledModulesTest, DoNotKeepCopiesOfBuffersAlive) {
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> copy(
      copy_of_count().value.getIntrusivePtr());
  EXPECT_TRUE(copy.expired());
  EXPECT_EQ(copy_of_count().value.item<float>(), 0);
}

}  // namespace
}  // namespace gpipe::internal

namespace gpipe::simulated {
namespace {

using at::Tensor;
using internal::BufferValue;
using internal::copy_values;
using internal::PastBuffers;
using internal::write_values;

class BufferValuesTest : public SimulatedTest {};

// Returns the buffers of `norms` BatchNorms.
std::vector<Tensor> buffers_of(int norms, const c10::Device& device) {
  std::vector<Tensor> buffers;
  for (int k = 0; k < norms; ++k) {
    buffers.push_back(at::full({5}, k).to(device));
    buffers.push_back(at::full({5}, k + 0.5).to(device));
    buffers.push_back(at::full({}, k, at::TensorOptions(at::kLong)).to(device));
  }
  return buffers;
}

TEST_F(BufferValuesTest, PutBackTheValuesAndRaiseNoVersion) {
  for (const c10::Device& device : {hpu(1), c10::Device(c10::kCPU)}) {
    const std::vector<Tensor> buffers = buffers_of(3, device);
    const std::vector<BufferValue> copies = copy_values(buffers);
    std::vector<int64_t> versions;
    for (Tensor buffer : buffers) {
      buffer.add_(7);
      versions.push_back(buffer._version());
    }
    write_values(copies);
    const std::vector<Tensor> expected = buffers_of(3, device);
    for (std::size_t k = 0; k < buffers.size(); ++k) {
      EXPECT_TRUE(buffers[k].cpu().equal(expected[k].cpu())) << k;
      EXPECT_EQ(buffers[k]._version(), versions[k]) << k;
    }
  }
}

// One for the statistics and one for the numbers of batches, each way.
TEST_F(BufferValuesTest, TakeALaunchPerDtypeAndNoWait) {
  const std::vector<Tensor> buffers = buffers_of(100, hpu(0));
  synchronize();
  const Counts before = counts();
  const std::vector<BufferValue> copies = copy_values(buffers);
  EXPECT_EQ((counts() - before).launches, 2);
  write_values(copies);
  EXPECT_EQ((counts() - before).launches, 2 + 2);
  EXPECT_EQ((counts() - before).host_waits, 0);
}

TEST_F(BufferValuesTest, OfNothingDoNothing) {
  const Counts before = counts();
  write_values(copy_values({}));
  EXPECT_EQ((counts() - before).launches, 0);
}

TEST_F(BufferValuesTest, PastValuesLastUntilTheEndOfTheScope) {
  for (const c10::Device& device : {hpu(1), c10::Device(c10::kCPU)}) {
    Tensor buffer = at::zeros({3}).to(device);
    const std::vector<BufferValue> past = copy_values({buffer});
    buffer.add_(1);
    const int64_t version = buffer._version();
    {
      const PastBuffers scope(past);
      EXPECT_TRUE(buffer.cpu().equal(at::zeros({3})));
      EXPECT_EQ(buffer._version(), version);
      buffer.add_(5);
    }
    EXPECT_TRUE(buffer.cpu().equal(at::ones({3})));
  }
}

TEST_F(BufferValuesTest, OfSparseBuffersArePutBack) {
  Tensor buffer = at::eye(2).to_sparse();
  const std::vector<BufferValue> past = copy_values({buffer});
  buffer.mul_(3);
  const int64_t version = buffer._version();
  {
    const PastBuffers scope(past);
    EXPECT_TRUE(buffer.to_dense().equal(at::eye(2)));
    EXPECT_EQ(buffer._version(), version);
    buffer.mul_(5);
  }
  EXPECT_TRUE(buffer.to_dense().equal(at::eye(2) * 3));
  EXPECT_TRUE(past[0].value.to_dense().equal(at::eye(2)));
}

TEST_F(BufferValuesTest, ABufferMayNotGetOtherMemoryInTheScope) {
  Tensor buffer = at::zeros({3});
  PastBuffers scope(copy_values({buffer}));
  buffer.set_data(at::ones({3}));
  EXPECT_THAT(
      testing::error_of([&] { scope.restore(); }),
      ::testing::StartsWith(
          "c10::Error: a forward that is computed again gives a buffer "
          "(CPUFloatType of sizes [3]) other memory, as by set_data()"));
  EXPECT_TRUE(buffer.equal(at::zeros({3})));
}

TEST_F(BufferValuesTest, AGraphKeepsACopyOfABufferWithAPastValue) {
  Tensor buffer = at::zeros({3, 2});
  const Tensor other = at::ones({2});
  EXPECT_TRUE(PastBuffers::to_save(buffer).is_same(buffer));
  const std::vector<BufferValue> past = copy_values({buffer});
  buffer.fill_(2);
  Tensor row, late;
  {
    PastBuffers scope(past);
    EXPECT_TRUE(PastBuffers::to_save(other).is_same(other));
    EXPECT_FALSE(PastBuffers::to_save(Tensor()).defined());
    {
      const internal::UnreadStatistics unread(buffer, other);
      EXPECT_TRUE(PastBuffers::to_save(buffer).is_same(buffer));
      // Another tensor of the same memory, such as the operator's input.
      EXPECT_FALSE(PastBuffers::to_save(buffer[1]).is_alias_of(buffer));
    }
    row = PastBuffers::to_save(buffer[1]);
    EXPECT_FALSE(row.is_alias_of(buffer));
    EXPECT_EQ(row._version(), 0);
    scope.restore();
    EXPECT_EQ(row._version(), 0);
  }
  EXPECT_TRUE(row.equal(at::zeros({2})));
  EXPECT_TRUE(buffer.equal(at::full({3, 2}, 2.)));
  {
    const PastBuffers scope(past);
    late = PastBuffers::to_save(buffer);
    buffer.add_(1);
  }
  EXPECT_EQ(late._version(), 1);  // so that a backward is refused
}

}  // namespace
}  // namespace gpipe::simulated
