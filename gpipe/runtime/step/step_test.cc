#include "gpipe/runtime/step/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "gpipe/runtime/step/testing.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::kNever;
using testing::layer;
using ::testing::Pair;
using testing::Scale;
using testing::stages_of;
using torch::Tensor;
using torch::nn::AnyModule;
using Tensors = std::vector<Tensor>;
using ::testing::IsEmpty;

// Runs the forward of cell (i, j) of `step` on ones.
Tensor forward(Step& step, int64_t j, int64_t i) {
  Activations input;
  input.boundary = {{torch::ones({2}).to(testing::device(j)), true, false}};
  return step.cells[j][i]
      .forward(std::move(input), step.seed, false)
      .boundary[0]
      .tensor;
}

TEST(Stages, LinkEachExportToItsImport) {
  auto layers = testing::layers_of(
      {AnyModule(Scale(1)), AnyModule(Scale(1)), AnyModule(Scale(1))});
  const SkipKey a{Namespace::none(), "a"}, b{Namespace::none(), "b"};
  layers[0].skips.stash = {b, a};
  layers[1].skips.pop = {b};
  layers[2].skips.pop = {a};
  const Stages stages = stages_of(std::move(layers));
  EXPECT_EQ(stages.size(), 3);
  ASSERT_EQ(stages.links.size(), 2u);
  const auto numbers = [](const SkipRoute& link) {
    return std::vector<int64_t>{link.from, link.exported, link.to,
                                link.imported};
  };
  EXPECT_THAT(numbers(stages.links[0]), ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(numbers(stages.links[1]), ElementsAre(0, 1, 2, 0));
}

TEST(Step, HasACellPerMicrobatchOfEachStageOfThisProcess) {
  Stages stages =
      stages_of({AnyModule(Scale(1)), AnyModule(), AnyModule(Scale(1))});
  const Step step(stages, 3, [](int64_t stage, int64_t microbatch) {
    return stage == 2 && microbatch == 1;
  });
  EXPECT_EQ(step.microbatches(), 3);
  EXPECT_EQ(step.cells[0].size(), 3u);
  EXPECT_EQ(step.cells[1].size(), 0u);
  ASSERT_EQ(step.cells[2].size(), 3u);
  EXPECT_FALSE(step.cells[0][1].checkpointed());
  EXPECT_FALSE(step.cells[2][0].checkpointed());
  EXPECT_TRUE(step.cells[2][1].checkpointed());
}

TEST(Step, RandomNumbersCountTheMicrobatchesBefore) {
  Stages stages =
      stages_of({layer([](const Tensor& x) { return torch::rand_like(x); })});
  Step whole(stages, 3, kNever), part(stages, 1, kNever, /*before=*/2);
  whole.seed.set(7);
  part.seed.set(7);
  const Tensor first = forward(whole, 0, 0), last = forward(whole, 0, 2);
  const Tensor of_part = forward(part, 0, 0);
  EXPECT_TRUE(of_part.equal(last));
  EXPECT_FALSE(of_part.equal(first));
}

TEST(Step, NumbersTheLeavesOfEachPartition) {
  if (testing::device(0) != testing::device(1)) {
    GTEST_SKIP() << "partitions on different devices share no parameter";
  }
  Scale shared(2), own(3);
  own->to(testing::device(1));  // stages_of() does not see it
  const auto both =
      layer([=](const Tensor& x) { return x * own->weight * shared->weight; });
  Stages stages = stages_of({AnyModule(shared), both});
  Step step(stages, 2, kNever);
  for (const int64_t j : {0, 1}) {
    for (const int64_t i : {0, 1}) {
      forward(step, j, i);
      step.number_leaves(j, i);
    }
  }
  EXPECT_THAT(step.cells[0][1].leaf_numbers(), ElementsAre(0));
  ASSERT_EQ(step.leaves[1].list.size(), 2u);
  EXPECT_EQ(step.cells[1][0].leaf_numbers(), step.cells[1][1].leaf_numbers());
  EXPECT_TRUE(step.is_shared(0, shared->weight));
  EXPECT_TRUE(step.is_shared(1, shared->weight));
  EXPECT_FALSE(step.is_shared(1, own->weight));

  const auto leaves = step.shared_leaves();
  ASSERT_EQ(leaves.size(), 2u);
  EXPECT_TRUE(leaves[0].tensor.is_same(shared->weight));
  const int64_t number = step.leaves[1].list[0].is_same(own->weight) ? 1 : 0;
  EXPECT_THAT(leaves[0].places, ElementsAre(Pair(0, 0), Pair(1, number)));
  EXPECT_TRUE(leaves[1].tensor.is_same(own->weight));
  EXPECT_THAT(leaves[1].places, ElementsAre(Pair(1, 1 - number)));
}

TEST(Step, GivesTheGraphOfACapturedTensorToOnePartition) {
  const Tensor w = torch::ones({1}).requires_grad_();
  Tensor captured;
  std::thread([&] { captured = w.exp(); }).join();
  const auto uses_it = [&] {
    return layer([=](const Tensor& x) { return x * captured.to(x.device()); });
  };
  Stages stages = stages_of({uses_it(), AnyModule(Scale(1)), uses_it()});
  Step step(stages, 2, kNever);
  for (const int64_t i : {0, 1}) {
    forward(step, 0, i);
    step.number_leaves(0, i);
  }
  forward(step, 2, 0);
  EXPECT_THAT(
      error_of([&] { step.number_leaves(2, 0); }),
      ::testing::StartsWith(
          "c10::Error: layers of partitions 0 and 2 use a tensor that has been "
          "computed outside of the pipeline (by ExpBackward0)"));
}

TEST(Step, KnowsThePlaceOfAFailure) {
  Stages stages =
      stages_of({AnyModule(Scale(1)), layer([](const Tensor&) -> Tensor {
                   throw std::runtime_error("fails");
                 })});
  Step step(stages, 2, kNever);
  EXPECT_NE(error_of([&] { forward(step, 1, 1); }), "");
  const auto place = [&](int stage, Phase phase) {
    return step.failure_at({stage, ActionKind::kForward, 1}, phase).place();
  };
  EXPECT_EQ(place(1, Phase::kForward),
            "partition 1, micro-batch 1, forward, layer '1'");
  EXPECT_EQ(place(0, Phase::kBackward), "partition 0, micro-batch 1, backward");
}

MiniBatch split(Value value, std::vector<int64_t> rows, bool with_graph = true,
                Unsplit unsplit = {}) {
  return MiniBatch(std::move(value), std::move(rows), std::move(unsplit),
                   with_graph);
}

TEST(MiniBatch, SplitsTensorsWithoutTheirGraph) {
  const Tensor leaf = torch::ones({5, 2}).requires_grad_();
  const Tensor plain = torch::arange(5);
  const MiniBatch batch =
      split(Value::wrap(Tensors{leaf, plain, Tensor()}), {3, 2});
  EXPECT_EQ(batch.microbatches(), 2);
  EXPECT_TRUE(batch.leaf());
  EXPECT_THAT(batch.rows(), ElementsAre(3, 2));
  const auto activations = batch.activations();
  const auto &first = activations[0].boundary,
             &second = activations[1].boundary;
  EXPECT_EQ(first[0].tensor.size(0), 3);
  EXPECT_EQ(second[0].tensor.size(0), 2);
  EXPECT_TRUE(second[1].tensor.equal(torch::arange(3, 5)));
  EXPECT_FALSE(second[2].tensor.defined());
  EXPECT_FALSE(first[0].tensor.requires_grad());
  EXPECT_TRUE(first[0].requires_grad);
  EXPECT_FALSE(first[1].requires_grad);
  const auto wanted = batch.wanted();
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_TRUE(wanted[0].tensor.is_same(leaf));
}

TEST(MiniBatch, KnowsWhetherGradientsMayBeNeeded) {
  const Tensor leaf = torch::ones({4}).requires_grad_();
  EXPECT_FALSE(split(Value::wrap(leaf * 2), {2, 2}).leaf());
  EXPECT_EQ(split(Value::wrap(leaf * 2), {2, 2}).wanted().size(), 1u);
  EXPECT_THAT(split(Value::wrap(leaf), {2, 2}, false).wanted(), IsEmpty());
}

TEST(MiniBatch, ItsActivationsAreMarkedIfTheyShareMemory) {
  const Tensor x = torch::ones({4}), y = torch::ones({4}).requires_grad_();
  const auto activations =
      split(Value::wrap(Tensors{x, y, x}), {2, 2}).activations();
  ASSERT_EQ(activations.size(), 2u);
  EXPECT_EQ(activations[1].kind, Value::Kind::kVector);
  const auto& boundary = activations[1].boundary;
  ASSERT_EQ(boundary.size(), 3u);
  EXPECT_TRUE(boundary[0].shared);
  EXPECT_FALSE(boundary[1].shared);
  EXPECT_TRUE(boundary[2].shared);
  EXPECT_TRUE(boundary[1].requires_grad);
  EXPECT_FALSE(boundary[0].requires_grad);
}

TEST(MiniBatch, GivesAnUnsplitElementWholeToEachMicrobatch) {
  const Tensor x = torch::arange(4.);
  const Tensor mask = torch::ones({3, 3}, torch::kFloat).requires_grad_();
  const MiniBatch batch =
      split(Value::wrap(Tensors{mask, x}), {2, 2}, true, {0});
  const auto activations = batch.activations();
  for (const Activations& each : activations) {
    EXPECT_EQ(each.boundary[0].unsplit, 0);
    EXPECT_TRUE(each.boundary[0].shared);
    EXPECT_TRUE(each.boundary[0].tensor.is_alias_of(mask));
    EXPECT_EQ(each.boundary[0].tensor.sizes(), mask.sizes());
    EXPECT_EQ(each.boundary[1].unsplit, -1);
    EXPECT_EQ(each.boundary[1].tensor.size(0), 2);
  }
  const auto wanted = batch.wanted();
  ASSERT_EQ(wanted.size(), 1u);
  const Tensor grad = torch::ones({3, 3});
  EXPECT_TRUE(wanted[0]
                  .element.join({{grad, Tensor()}, {grad * 2, Tensor()}})
                  .equal(grad * 3));
}

TEST(MiniBatch, TakesPartsAsTheyAre) {
  const Tensor a = torch::ones({2, 3}).requires_grad_();
  const Tensor b = torch::tensor(7.f);
  const MiniBatch batch(
      Batch(std::vector<Value>{Value::wrap(a), Value::wrap(b)}), {}, {}, true);
  EXPECT_EQ(batch.microbatches(), 2);
  EXPECT_TRUE(batch.split());
  EXPECT_THAT(batch.rows(), ElementsAre(2, 0));
  const auto activations = batch.activations();
  EXPECT_TRUE(activations[0].boundary[0].requires_grad);
  EXPECT_FALSE(activations[1].boundary[0].requires_grad);
  EXPECT_TRUE(activations[1].boundary[0].tensor.equal(b));
  const auto wanted = batch.wanted();
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_TRUE(wanted[0].tensor.is_same(a));
  const Tensor grad = torch::ones({2, 3});
  EXPECT_TRUE(wanted[0].element.join({{grad}, {}}).is_same(grad));
}

TEST(Element, JoinsPiecesAndFillsMissingOnesWithZeros) {
  const std::vector<Value> pieces = scatter(
      Value::wrap(Tensors{torch::ones({5}), torch::ones({5, 2})}), {3, 2});
  const Element second(1, pieces);
  const Tensor grad = torch::full({2, 2}, 7.f);
  EXPECT_TRUE(second.join({{}, {Tensor(), grad}})
                  .equal(torch::cat({torch::zeros({3, 2}), grad})));
  EXPECT_TRUE(
      second.join({{Tensor(), torch::ones({3, 2})}, {{}, Tensor()}})
          .equal(torch::cat({torch::ones({3, 2}), torch::zeros({2, 2})})));
  EXPECT_FALSE(second.join({{}, {Tensor(), Tensor()}}).defined());
}

TEST(Element, SplitsAGradientIntoTheRowsOfItsPieces) {
  const Element element(0, scatter(Value::wrap(torch::ones({5})), {3, 2}));
  std::vector<std::vector<Tensor>> grads(2, std::vector<Tensor>(1));
  element.split(torch::arange(5), grads);
  EXPECT_TRUE(grads[0][0].equal(torch::arange(3)));
  EXPECT_TRUE(grads[1][0].equal(torch::arange(3, 5)));
  Element::of_part(1, 0).split(torch::ones({7}), grads);
  EXPECT_EQ(grads[1][0].numel(), 7);
}

TEST(Element, OfOnePieceIsThatPiece) {
  const Tensor grad = torch::ones({3});
  const Element element(0, {Value::wrap(torch::ones({3}))});
  EXPECT_TRUE(element.join({{grad}}).is_same(grad));
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
    const NormScope scope(partitions[1].norms.get());
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
