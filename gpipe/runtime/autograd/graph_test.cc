#include "gpipe/runtime/autograd/graph.h"

#include <ATen/Functions.h>
#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/errors.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::IsEmpty;
using torch::Tensor;
using torch::autograd::edge_list;

Tensor scalar(double value, bool requires_grad = false) {
  return torch::full({1}, value, torch::kDouble).requires_grad_(requires_grad);
}

TEST(GraphInputs, AreAliasesThatBeginAGraph) {
  const Tensor a = scalar(1), b = scalar(2), c = scalar(3);
  const auto tensors = graph_inputs(
      {{a, true}, {b, false}, {Tensor(), false}, {c, true}}, /*leaf=*/false);
  EXPECT_EQ(tensors[0].data_ptr(), a.data_ptr());
  EXPECT_FALSE(tensors[0].is_leaf());
  EXPECT_FALSE(tensors[1].requires_grad());
  EXPECT_FALSE(tensors[2].defined());
  const edge_list edges = gradient_edges(tensors);
  ASSERT_EQ(edges.size(), 4u);
  EXPECT_EQ(edges[0].function->name(), "gpipe::Begin");
  EXPECT_FALSE(edges[1].is_valid());
  EXPECT_FALSE(edges[2].is_valid());
  EXPECT_EQ(edges[3].function.get(), edges[0].function.get());
  EXPECT_NE(edges[3].input_nr, edges[0].input_nr);
  tensors[0].add_(1);  // a layer may work in place
  EXPECT_EQ(a.item<double>(), 2);
}

TEST(GraphInputs, AreLeavesIfTheyAreLeavesOfTheUser) {
  const auto tensors =
      graph_inputs({{scalar(1), true}, {scalar(2), false}}, /*leaf=*/true);
  EXPECT_TRUE(tensors[0].is_leaf());
  EXPECT_TRUE(tensors[0].requires_grad());
  EXPECT_FALSE(tensors[1].requires_grad());
  EXPECT_NE(error_of([&] { tensors[0].add_(1); }), "");
}

TEST(GraphInputs, HaveNoGraphWithoutGradMode) {
  const c10::NoGradGuard no_grad;
  EXPECT_FALSE(
      graph_inputs({{scalar(1), true}}, /*leaf=*/false)[0].requires_grad());
}

TEST(Graph, AnOutputLeavesWithoutGraph) {
  const Tensor w = scalar(2, true);
  const Tensor output = w * 3;
  const Activation leaving = without_graph(output);
  EXPECT_FALSE(leaving.tensor.requires_grad());
  EXPECT_EQ(leaving.tensor.data_ptr(), output.data_ptr());
  EXPECT_TRUE(leaving.requires_grad);
  EXPECT_FALSE(leaving.shared);
  EXPECT_FALSE(without_graph(scalar(1)).requires_grad);
  EXPECT_FALSE(without_graph(Tensor()).tensor.defined());

  EXPECT_EQ(gradient_edge(output).function.get(), output.grad_fn().get());
  EXPECT_FALSE(gradient_edge(scalar(1)).is_valid());
  EXPECT_FALSE(gradient_edge(Tensor()).is_valid());
}

// A graph: output = (x * w + v) * w, where x is the input and w and v are
// leaves.
struct Example {
  Tensor w = scalar(3, true), v = scalar(5, true);
  Tensor output;
  Subgraph graph;

  explicit Example(bool want_input = true) {
    const auto inputs = graph_inputs({{scalar(2), want_input}}, false);
    output = (inputs[0] * w + v) * w;
    graph = Subgraph(0, gradient_edges(inputs), {output});
  }

  // Returns the gradients of the leaves as "0:57 1:3", in the order in which
  // they came, and that of the input.
  std::pair<std::string, Tensor> run(bool keep_graph,
                                     std::vector<bool> wanted = {true, true},
                                     bool want_input = true) {
    std::string sums;
    const auto grads =
        graph.backward({scalar(1)}, keep_graph, want_input, wanted,
                       [&](std::size_t leaf, const Tensor& grad) {
                         sums += std::to_string(leaf) + ":" +
                                 std::to_string(grad.item<int64_t>()) + " ";
                       });
    return {sums, grads[0]};
  }
};

TEST(Subgraph, ListsEachLeafOnce) {
  Example example;
  ASSERT_EQ(example.graph.leaves().size(), 2u);
  EXPECT_TRUE(example.graph.leaves()[0].is_same(example.w));
  EXPECT_TRUE(example.graph.leaves()[1].is_same(example.v));
  EXPECT_TRUE(example.graph.wants_input());
  EXPECT_FALSE(Example(/*want_input=*/false).graph.wants_input());
  EXPECT_FALSE(example.graph.reaches_other_input());
  EXPECT_THAT(example.graph.take_foreign(), IsEmpty());
}

TEST(Subgraph, AnInputIsNoLeafAndAnOutputMayBeOne) {
  const auto inputs = graph_inputs({{scalar(2), true}}, /*leaf=*/true);
  const Tensor w = scalar(3, true);
  const Subgraph graph(0, gradient_edges(inputs),
                       {inputs[0] * 2, scalar(1), w});
  ASSERT_EQ(graph.leaves().size(), 1u);
  EXPECT_TRUE(graph.leaves()[0].is_same(w));
}

TEST(Subgraph, ListsTheNodesOfOtherThreads) {
  const Tensor w = scalar(3, true);
  Tensor captured;
  std::thread([&] { captured = w.exp(); }).join();
  const Tensor output = captured * 2;
  Subgraph graph(0, {}, {output});
  const auto foreign = graph.take_foreign();
  ASSERT_EQ(foreign.size(), 1u);
  EXPECT_EQ(foreign[0].node.get(), captured.grad_fn().get());
  EXPECT_EQ(foreign[0].user, output.grad_fn()->sequence_nr());
  EXPECT_TRUE(graph.leaves()[0].is_same(w));
  EXPECT_THAT(graph.take_foreign(), IsEmpty());
}

TEST(Subgraph, FindsTheUserOfAnInputOfAnotherGraph) {
  for (const bool leaf : {false, true}) {
    const auto other = graph_inputs({{scalar(2), true}}, leaf);
    for (const Tensor& kept : {other[0], other[0] * 2}) {
      const auto inputs = graph_inputs({{scalar(2), true}}, leaf);
      const uint64_t begin = at::sequence_number::peek();
      const Tensor user = inputs[0] + kept;
      const Subgraph graph(begin, gradient_edges(inputs), {user * 3});
      EXPECT_TRUE(graph.reaches_other_input());
      EXPECT_EQ(graph.user_of_other_input(), user.grad_fn().get());
      const Subgraph own(begin, gradient_edges(inputs), {inputs[0] * 3});
      EXPECT_FALSE(own.reaches_other_input());
    }
  }
}

TEST(Subgraph, LeavesKeepTheNumbersOfAnEarlierRun) {
  const Tensor w = scalar(3, true), v = scalar(5, true), u = scalar(7, true);
  const Subgraph first(0, {}, {w * 2, v * 2});
  Subgraph again(0, {}, {u * 2, v * 2, w * 2});
  again.number_as(first);
  ASSERT_EQ(again.leaves().size(), 2u);
  again.backward({scalar(1), scalar(10), scalar(100)}, /*keep_graph=*/false,
                 /*want_input=*/false, {true, true},
                 [&](std::size_t leaf, const Tensor& grad) {
                   const bool is_w = first.leaves()[leaf].is_same(w);
                   EXPECT_EQ(grad.item<double>(), is_w ? 200 : 20);
                 });
}

// d/dw = 2 x w + v = 17, d/dv = w = 3, d/dx = w^2 = 9.
TEST(Subgraph, GivesTheSumOfEachLeafOnceAndLeavesGradAlone) {
  Example example;
  int hooks = 0;
  example.w.register_hook([&](const Tensor&) { ++hooks; });
  const auto [sums, input] = example.run(/*keep_graph=*/false);
  EXPECT_EQ(sums, "1:3 0:17 ");
  EXPECT_EQ(input.item<double>(), 9);
  EXPECT_FALSE(example.w.grad().defined());
  EXPECT_FALSE(example.v.grad().defined());
  EXPECT_EQ(hooks, 0);
}

TEST(Subgraph, SkipsWhatIsNotWanted) {
  Example example;
  EXPECT_EQ(example.run(true, {false, true}).first, "1:3 ");
  EXPECT_EQ(example.run(true, {true, false}).first, "0:17 ");
  const auto [sums, input] = example.run(true, {false, false});
  EXPECT_EQ(sums, "");
  EXPECT_EQ(input.item<double>(), 9);
  EXPECT_FALSE(example.run(true, {true, true}, false).second.defined());
  EXPECT_FALSE(example.run(true, {false, false}, false).second.defined());
}

TEST(Subgraph, IsKeptIfAskedFor) {
  Example example;
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(example.run(true).first, "1:3 0:17 ");
  }
  EXPECT_EQ(example.run(false).first, "1:3 0:17 ");
  EXPECT_EQ(example.graph.leaves().size(), 2u);
  EXPECT_NE(error_of([&] { example.output.backward(); }).find("second time"),
            std::string::npos);
}

TEST(Subgraph, GivesLeavesBackTheirOwnNodes) {
  Example example(/*want_input=*/false);
  example.run(/*keep_graph=*/true);
  example.output.backward();
  EXPECT_EQ(example.w.grad().item<double>(), 17);
  EXPECT_EQ(example.v.grad().item<double>(), 3);
}

TEST(Subgraph, TakesUndefinedGradientsAndOutputsThatAreLeaves) {
  const Tensor w = scalar(3, true), v = scalar(5, true);
  Subgraph graph(0, {}, {w, scalar(1), v * 2, w});
  std::string sums;
  graph.backward({scalar(4), scalar(9), Tensor(), scalar(6)}, false, false,
                 {true, true}, [&](std::size_t leaf, const Tensor& grad) {
                   sums += std::to_string(leaf) + ":" +
                           std::to_string(grad.item<int64_t>()) + " ";
                 });
  EXPECT_EQ(sums, "0:10 ");
}

Tensor number(double value) { return at::full({1}, value, at::kDouble); }
Tensor leaf_of(double value) { return number(value).requires_grad_(); }

torch::autograd::Edge edge(const Tensor& tensor) {
  return torch::autograd::impl::gradient_edge(tensor);
}

class DeviceThreadTest : public simulated::SimulatedTest {};

// The thread of the device is in a node when a node of this thread throws.
TEST_F(DeviceThreadTest, ABackwardThrowsAfterTheLastNodeHasEnded) {
  const Tensor here = scalar(2, true);
  const Tensor there = torch::ones({1}, simulated::hpu(0)).requires_grad_();
  const std::vector<Tensor> outputs{there * 3, here * 3};
  std::promise<void> entered, thrown;
  std::atomic<bool> ended{false};
  outputs[0].register_hook([&](const Tensor&) {
    entered.set_value();
    thrown.get_future().wait();
    for (int k = 0; k < 1000; ++k) std::this_thread::yield();
    ended = true;
  });
  outputs[1].register_hook([&](const Tensor&) {
    entered.get_future().wait();
    thrown.set_value();
    throw std::runtime_error("here");
  });
  Subgraph graph(0, {}, outputs);
  EXPECT_EQ(error_of([&] {
              graph.backward({torch::ones_like(outputs[0]), scalar(1)},
                             /*keep_graph=*/false, /*want_input=*/false,
                             {true, true}, [](std::size_t, const Tensor&) {});
            }),
            "std::runtime_error: here");
  EXPECT_TRUE(ended);
}

TEST(Accumulate, AddsToGradAndCallsHooksOnce) {
  const Tensor w = leaf_of(3), v = leaf_of(5);
  const Tensor outer = v * 10;  // a graph of the user
  v.mutable_grad() = number(1);
  int hooks = 0;
  w.register_hook([&](const Tensor& grad) {
    ++hooks;
    return grad * 2;
  });
  accumulate({edge(w), edge(outer)}, {number(7), number(2)});
  EXPECT_EQ(hooks, 1);
  EXPECT_EQ(w.grad().item<double>(), 14);
  EXPECT_EQ(v.grad().item<double>(), 21);
}

TEST(Accumulate, SkipsUndefinedGradients) {
  const Tensor w = leaf_of(3), v = leaf_of(5);
  int hooks = 0;
  w.register_hook([&](const Tensor&) { ++hooks; });
  accumulate({edge(w), edge(v)}, {Tensor(), number(2)});
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(v.grad().item<double>(), 2);
  accumulate({edge(w)}, {Tensor()});
  accumulate({}, {});
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(hooks, 0);
}

}  // namespace
}  // namespace gpipe::internal
