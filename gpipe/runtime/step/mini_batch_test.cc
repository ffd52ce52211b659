#include "gpipe/runtime/step/mini_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "gpipe/runtime/step/small_stages.h"
#include "gpipe/testing/devices.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

TEST(MiniBatch, SplitsTensorsWithoutTheirGraph) {
  const Tensor leaf = torch::ones({5, 2}).requires_grad_();
  const Tensor plain = torch::arange(5);
  const MiniBatch batch(Value::wrap(Tensors{leaf, plain, Tensor()}), 2, true);
  EXPECT_EQ(batch.microbatches(), 2);
  EXPECT_TRUE(batch.leaf);
  EXPECT_THAT(batch.requires_grad, ElementsAre(true, false, false));
  EXPECT_EQ(batch.pieces[0].tensors()[0].size(0), 3);
  EXPECT_EQ(batch.pieces[1].tensors()[0].size(0), 2);
  EXPECT_TRUE(batch.pieces[1].tensors()[1].equal(torch::arange(3, 5)));
  EXPECT_FALSE(batch.pieces[1].tensors()[2].defined());
  EXPECT_FALSE(batch.pieces[0].tensors()[0].requires_grad());
}

TEST(MiniBatch, KnowsWhetherGradientsMayBeNeeded) {
  const Tensor leaf = torch::ones({4}).requires_grad_();
  EXPECT_FALSE(MiniBatch(Value::wrap(leaf * 2), 2, true).leaf);
  EXPECT_THAT(MiniBatch(Value::wrap(leaf * 2), 2, true).requires_grad,
              ElementsAre(true));
  EXPECT_THAT(MiniBatch(Value::wrap(leaf), 2, false).requires_grad,
              ElementsAre(false));
}

TEST(MiniBatch, ItsActivationsAreMarkedIfTheyShareMemory) {
  const Tensor x = torch::ones({4}), y = torch::ones({4}).requires_grad_();
  const MiniBatch batch(Value::wrap(Tensors{x, y, x}), 2, true);
  const auto parcels = batch.parcels();
  ASSERT_EQ(parcels.size(), 2u);
  EXPECT_EQ(parcels[1].kind, Value::Kind::kVector);
  const auto& boundary = parcels[1].boundary;
  ASSERT_EQ(boundary.size(), 3u);
  EXPECT_TRUE(boundary[0].shared);
  EXPECT_FALSE(boundary[1].shared);
  EXPECT_TRUE(boundary[2].shared);
  EXPECT_TRUE(boundary[1].requires_grad);
  EXPECT_FALSE(boundary[0].requires_grad);
}

TEST(Element, JoinsPiecesAndFillsMissingOnesWithZeros) {
  const MiniBatch batch(
      Value::wrap(Tensors{torch::ones({5}), torch::ones({5, 2})}), 2, true);
  const Element second(1, batch.pieces);
  EXPECT_THAT(second.rows, ElementsAre(3, 2));
  const Tensor grad = torch::full({2, 2}, 7.f);
  EXPECT_TRUE(second.join({{}, {Tensor(), grad}})
                  .equal(torch::cat({torch::zeros({3, 2}), grad})));
  EXPECT_TRUE(
      second.join({{Tensor(), torch::ones({3, 2})}, {{}, Tensor()}})
          .equal(torch::cat({torch::ones({3, 2}), torch::zeros({2, 2})})));
  EXPECT_FALSE(second.join({{}, {Tensor(), Tensor()}}).defined());
}

TEST(Element, OfOnePieceIsThatPiece) {
  const MiniBatch batch(Value::wrap(torch::ones({3})), 1, true);
  const Tensor grad = torch::ones({3});
  EXPECT_TRUE(Element(0, batch.pieces).join({{grad}}).is_same(grad));
}

TEST(AccumulatorsOf, AreThoseOfTrainableParametersOnAccelerators) {
  testing::Scale trained(1), frozen(2);
  frozen->weight.requires_grad_(false);
  const Stages stages = testing::stages_of(
      {torch::nn::AnyModule(trained), torch::nn::AnyModule(frozen)});
  const auto edges = accumulators_of(stages.partitions);
  if (testing::device().is_cpu()) {
    EXPECT_TRUE(edges.empty());
    return;
  }
  ASSERT_EQ(edges.size(), 1u);
  EXPECT_TRUE(edges[0].is_valid());
}

// A BatchNorm whose statistics are deferred. Micro-batches are (0, 2) and
// (4, 6): the mean is 3 and the unbiased variance 20 / 3.
struct Deferred {
  torch::nn::BatchNorm1d norm{torch::nn::BatchNorm1dOptions(1).momentum(1)};
  std::vector<Partition> partitions{2};

  Deferred() {
    norm->to(testing::device());
    partitions[1].norms = std::make_shared<NormStatistics>(
        std::vector<std::shared_ptr<torch::nn::Module>>{norm.ptr()});
  }
  void forward() {
    const NormScope scope(partitions[1].norms.get(), /*record=*/true);
    for (const double first : {0, 4}) {
      norm(torch::tensor({first, first + 2}, torch::kFloat)
               .view({2, 1})
               .to(testing::device()));
    }
  }
  std::vector<double> state() const {
    return {norm->running_mean.item<double>(), norm->running_var.item<double>(),
            static_cast<double>(norm->num_batches_tracked.item<int64_t>())};
  }
};

constexpr double kVariance = 20.0 / 3;
const auto kBefore = ElementsAre(0, 1, 0);
const auto kAfter = ElementsAre(3, ::testing::DoubleNear(kVariance, 1e-5), 1);

TEST(MiniBatchNorms, ChangeBuffersInWriteAndKeepThem) {
  Deferred deferred;
  {
    MiniBatchNorms norms(deferred.partitions);
    deferred.forward();
    norms.prepare();
    EXPECT_EQ(deferred.norm->running_mean.item<double>(), 0);
    norms.write();
    EXPECT_THAT(deferred.state(), kAfter);
    norms.keep();
  }
  EXPECT_THAT(deferred.state(), kAfter);
}

TEST(MiniBatchNorms, TakeChangesBackThatAreNotKept) {
  Deferred deferred;
  {
    MiniBatchNorms norms(deferred.partitions);
    deferred.forward();
    norms.prepare();
    norms.write();
  }
  EXPECT_THAT(deferred.state(), kBefore);
}

TEST(MiniBatchNorms, ForgetAMiniBatchThatFails) {
  Deferred deferred;
  {
    MiniBatchNorms norms(deferred.partitions);
    deferred.forward();
  }
  EXPECT_THAT(deferred.state(), kBefore);
  deferred.forward();  // fails before a MiniBatchNorms is made
  MiniBatchNorms norms(deferred.partitions);
  deferred.forward();
  norms.prepare();
  norms.write();
  EXPECT_THAT(deferred.state(), kAfter);
  norms.keep();
}

}  // namespace
}  // namespace gpipe::internal
