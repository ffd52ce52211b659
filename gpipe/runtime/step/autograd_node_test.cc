#include "gpipe/runtime/step/autograd_node.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using torch::Tensor;

Tensor number(double value) {
  return torch::full({1}, value).to(testing::device());
}

// A backward whose gradients are 10 and 100 times the first output's.
struct Fake {
  std::vector<std::string> calls;
  std::vector<bool> wanted;
  std::vector<Tensor> grads;
  std::thread::id thread;
  bool fails = false;

  std::vector<Tensor> backward(std::vector<Tensor> grads_in,
                               const std::vector<bool>& wanted_in,
                               bool keep_graph) {
    calls.emplace_back(keep_graph ? "backward, keep" : "backward");
    thread = std::this_thread::get_id();
    grads = std::move(grads_in);
    wanted = wanted_in;
    if (fails) throw std::out_of_range("no row 7");
    const Tensor grad = grads[0].defined() ? grads[0] : grads[1];
    return {wanted[0] ? grad * 10 : Tensor(),
            wanted[1] ? grad * 100 : Tensor()};
  }
};

// Two inputs, and two outputs whose graph is one node.
struct Graph {
  Tensor a = number(1).requires_grad_(), b = number(2).requires_grad_();
  std::vector<Tensor> outputs{number(3), number(4)};
  std::shared_ptr<Fake> fake = std::make_shared<Fake>();
  Graph() {
    attach_graph(outputs,
                 {torch::autograd::impl::gradient_edge(a),
                  torch::autograd::impl::gradient_edge(b)},
                 std::bind_front(&Fake::backward, fake));
  }
};

TEST(AttachGraph, CallsBackwardOnTheCallersThreadAndReleases) {
  Graph graph;
  EXPECT_TRUE(graph.outputs[0].requires_grad());
  graph.outputs[0].mul(2).backward();
  EXPECT_THAT(graph.fake->calls, ElementsAre("backward"));
  EXPECT_EQ(graph.fake->thread, std::this_thread::get_id());
  EXPECT_EQ(graph.fake.use_count(), 1);
  EXPECT_THAT(graph.fake->wanted, ElementsAre(true, true));
  ASSERT_EQ(graph.fake->grads.size(), 2u);
  EXPECT_EQ(graph.fake->grads[0].item<float>(), 2);
  EXPECT_FALSE(graph.fake->grads[1].defined());
  EXPECT_EQ(graph.a.grad().item<float>(), 20);
  EXPECT_EQ(graph.b.grad().item<float>(), 200);
}

TEST(AttachGraph, CallsBackwardOnceForAllOutputs) {
  Graph graph;
  (graph.outputs[0] * 2 + graph.outputs[1] * 3).backward();
  EXPECT_THAT(graph.fake->calls, ElementsAre("backward"));
  EXPECT_EQ(graph.fake->grads[0].item<float>(), 2);
  EXPECT_EQ(graph.fake->grads[1].item<float>(), 3);
}

TEST(AttachGraph, SaysWhichGradientsAreWanted) {
  Graph graph;
  const auto grads = torch::autograd::grad({graph.outputs[0]}, {graph.b});
  EXPECT_THAT(graph.fake->wanted, ElementsAre(false, true));
  EXPECT_EQ(grads[0].item<float>(), 100);
  EXPECT_FALSE(graph.a.grad().defined());
}

TEST(AttachGraph, BackwardRunsAgainOnlyIfTheGraphIsKept) {
  Graph graph;
  graph.outputs[0].backward({}, /*retain_graph=*/true);
  graph.outputs[0].backward();
  EXPECT_THAT(graph.fake->calls, ElementsAre("backward, keep", "backward"));
  EXPECT_EQ(graph.fake.use_count(), 1);
  EXPECT_EQ(graph.a.grad().item<float>(), 20);
  EXPECT_THAT(error_of([&] { graph.outputs[0].backward(); }),
              HasSubstr("backward through the graph a second time"));
  EXPECT_EQ(graph.fake->calls.size(), 2u);
}

TEST(AttachGraph, RefusesToBeDifferentiatedTwice) {
  Graph graph;
  EXPECT_THAT(
      error_of([&] {
        graph.outputs[0].backward({}, /*retain_graph=*/true,
                                  /*create_graph=*/true);
      }),
      HasSubstr("c10::Error: a pipeline cannot be differentiated twice: "
                "create_graph = true is not supported for it"));
  EXPECT_TRUE(graph.fake->calls.empty());
}

TEST(AttachGraph, LetsTheExceptionOfTheBackwardThrough) {
  Graph graph;
  graph.fake->fails = true;
  EXPECT_EQ(error_of([&] { graph.outputs[0].backward({}, true); }),
            "std::out_of_range: no row 7");
  graph.fake->fails = false;
  graph.outputs[0].backward();
  EXPECT_EQ(graph.a.grad().item<float>(), 10);
}

TEST(AttachGraph, ABackwardKeepsWhatItsCallOwnsWhenAnotherThreadReleases) {
  struct {
    std::promise<void> called, released;
    std::weak_ptr<int> owned;
    bool has_lived = false;
  } test;
  const Tensor a = number(1).requires_grad_();
  std::vector<Tensor> outputs{number(3)};
  {
    auto owned = std::make_shared<int>();
    test.owned = owned;
    attach_graph(outputs, {torch::autograd::impl::gradient_edge(a)},
                 [&test, owned = std::move(owned)](std::vector<Tensor> grads,
                                                   const std::vector<bool>&,
                                                   bool keep_graph) {
                   if (!keep_graph) return grads;
                   auto& here = test;  // the function may be destroyed below
                   here.called.set_value();
                   here.released.get_future().wait();
                   here.has_lived = !here.owned.expired();
                   return grads;
                 });
  }
  std::thread other([&] { outputs[0].backward({}, /*retain_graph=*/true); });
  test.called.get_future().wait();
  outputs[0].backward();
  test.released.set_value();
  other.join();
  EXPECT_TRUE(test.has_lived);
  EXPECT_TRUE(test.owned.expired());
  EXPECT_EQ(a.grad().item<float>(), 2);
}

TEST(AttachGraph, IsReleasedWithTheLastOutput) {
  Graph graph;
  EXPECT_EQ(graph.fake.use_count(), 2);
  graph.outputs.clear();
  EXPECT_EQ(graph.fake.use_count(), 1);
}

TEST(LeafChanges, TellsAWriteWithoutANewVersionFromOneWithIt) {
  const std::vector<at::Tensor> leaves = {at::zeros({3, 5}), at::zeros({1})};
  LeafChanges changes;
  for (const at::Tensor& leaf : leaves) changes.watch(leaf);
  EXPECT_EQ(changes.without_version(), nullptr);
  EXPECT_EQ(changes.with_version(), nullptr);

  leaves[1].data().add_(1);
  ASSERT_NE(changes.without_version(), nullptr);
  EXPECT_TRUE(changes.without_version()->is_same(leaves[1]));
  EXPECT_EQ(changes.with_version(), nullptr);

  leaves[0].add_(1);
  EXPECT_TRUE(changes.without_version()->is_same(leaves[1]));
  ASSERT_NE(changes.with_version(), nullptr);
  EXPECT_TRUE(changes.with_version()->is_same(leaves[0]));
}

TEST(LeafChanges, ReadsTheFirstTheMiddleAndTheLastElementInMemory) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t k : {0, 7, 14}) {
      // Columns and rows change places, and the memory does not.
      const at::Tensor leaf = at::zeros({3, 5}, type).t();
      LeafChanges changes;
      changes.watch(leaf);
      leaf.t().data().view({15})[k] = 1;
      EXPECT_NE(changes.without_version(), nullptr) << type << ", " << k;
    }
  }
}

TEST(LeafChanges, TakesLeavesWithoutMemoryOrElements) {
  const std::vector<at::Tensor> leaves = {
      at::empty({2}, at::kMeta), at::empty({0}), at::zeros({1}).expand({4}),
      at::eye(2).to_sparse()};
  LeafChanges changes;
  for (const at::Tensor& leaf : leaves) changes.watch(leaf);
  EXPECT_EQ(changes.without_version(), nullptr);
  EXPECT_EQ(changes.with_version(), nullptr);
}

}  // namespace
}  // namespace gpipe::internal
