#include "gpipe/runtime/autograd/graph.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <string>
#include <thread>
#include <utility>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::IsEmpty;
using torch::Tensor;
using torch::autograd::Edge;
using torch::autograd::edge_list;

Tensor scalar(double value, bool requires_grad = false) {
  return torch::full({1}, value, torch::kDouble).requires_grad_(requires_grad);
}

TEST(GraphInputs, AreAliasesThatBeginAGraph) {
  const Tensor a = scalar(1), b = scalar(2), c = scalar(3);
  GraphInputs inputs({{a, true}, {b, false}, {Tensor(), false}, {c, true}},
                     /*leaf=*/false);
  const auto& tensors = inputs.tensors();
  EXPECT_EQ(tensors[0].data_ptr(), a.data_ptr());
  EXPECT_FALSE(tensors[0].is_leaf());
  EXPECT_FALSE(tensors[1].requires_grad());
  EXPECT_FALSE(tensors[2].defined());
  const edge_list& edges = inputs.edges();
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
  GraphInputs inputs({{scalar(1), true}, {scalar(2), false}}, /*leaf=*/true);
  EXPECT_TRUE(inputs.tensors()[0].is_leaf());
  EXPECT_TRUE(inputs.tensors()[0].requires_grad());
  EXPECT_FALSE(inputs.tensors()[1].requires_grad());
  EXPECT_TRUE(inputs.edges()[0].is_valid());
  EXPECT_FALSE(inputs.edges()[1].is_valid());
  EXPECT_NE(error_of([&] { inputs.tensors()[0].add_(1); }), "");
}

TEST(GraphInputs, HaveNoGraphWithoutGradMode) {
  const c10::NoGradGuard no_grad;
  GraphInputs inputs({{scalar(1), true}}, /*leaf=*/false);
  EXPECT_FALSE(inputs.tensors()[0].requires_grad());
  EXPECT_FALSE(inputs.edges()[0].is_valid());
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

TEST(Graph, AStandInTakesWhatTheInputOfAnEdgeTakes) {
  const Tensor w = torch::ones({5, 3}).requires_grad_();
  const Tensor half = w.split({3, 2})[1];
  const NodePtr node = stand_in_for(gradient_edge(half), 7);
  EXPECT_EQ(node->sequence_nr(), 7u);
  ASSERT_EQ(node->num_inputs(), 1u);
  EXPECT_TRUE(node->input_metadata(0).is_same_shape(half));
  EXPECT_EQ(node->num_outputs(), 0u);
}

// A graph: output = (x * w + v) * w, where x is the input and w and v are
// leaves.
struct Graph {
  Tensor w = scalar(3, true), v = scalar(5, true);
  GraphInputs inputs{{{scalar(2), true}}, /*leaf=*/false};
  Tensor output;
  edge_list output_edges;

  Graph() {
    output = (inputs.tensors()[0] * w + v) * w;
    output_edges = {gradient_edge(output)};
  }
  Leaves leaves() const { return find_leaves(output_edges, inputs.edges()); }
};

TEST(FindLeaves, ListsEachLeafOnceAndEachEdgeToIt) {
  const Graph graph;
  const Leaves leaves = graph.leaves();
  ASSERT_EQ(leaves.tensors.size(), 2u);
  EXPECT_TRUE(leaves.tensors[0].is_same(graph.w));
  EXPECT_TRUE(leaves.tensors[1].is_same(graph.v));
  std::vector<std::size_t> of_leaf(2);
  for (const auto& each : leaves.leaf_edges) {
    ++of_leaf[each.leaf];
    auto* const node = dynamic_cast<torch::autograd::AccumulateGrad*>(
        each.node->next_edge(each.edge).function.get());
    ASSERT_NE(node, nullptr);
    EXPECT_TRUE(node->variable.is_same(leaves.tensors[each.leaf]));
  }
  EXPECT_THAT(of_leaf, ElementsAre(2, 1));
  EXPECT_THAT(leaves.foreign, IsEmpty());
}

TEST(FindLeaves, AnInputIsNoLeafAndAnOutputMayBeOne) {
  GraphInputs inputs({{scalar(2), true}}, /*leaf=*/true);
  const Tensor w = scalar(3, true);
  const Leaves leaves = find_leaves(
      {gradient_edge(inputs.tensors()[0] * 2), Edge(), gradient_edge(w)},
      inputs.edges());
  ASSERT_EQ(leaves.tensors.size(), 1u);
  EXPECT_TRUE(leaves.tensors[0].is_same(w));
  ASSERT_EQ(leaves.leaf_edges.size(), 1u);
  EXPECT_EQ(leaves.leaf_edges[0].node, nullptr);
}

TEST(FindLeaves, ListsTheNodesOfOtherThreads) {
  const Tensor w = scalar(3, true);
  Tensor captured;
  std::thread([&] { captured = w.exp(); }).join();
  const Tensor output = captured * 2;
  const Leaves leaves = find_leaves({gradient_edge(output)}, {});
  ASSERT_EQ(leaves.foreign.size(), 1u);
  EXPECT_EQ(leaves.foreign[0].node.get(), captured.grad_fn().get());
  EXPECT_EQ(leaves.foreign[0].user, output.grad_fn()->sequence_nr());
  EXPECT_TRUE(leaves.tensors[0].is_same(w));
}

// Returns the gradients of the leaves as "0:57 1:3", in the order in which they
// came, and that of the input.
std::pair<std::string, Tensor> run(const Graph& graph, bool keep_graph,
                                   std::vector<bool> wanted = {true, true},
                                   bool want_input = true) {
  std::string sums;
  const edge_list targets = want_input ? graph.inputs.edges() : edge_list(1);
  const auto grads = run_backward(
      graph.output_edges, {scalar(1)}, targets, keep_graph, graph.leaves(),
      wanted, [&](std::size_t leaf, const Tensor& grad) {
        sums += std::to_string(leaf) + ":" +
                std::to_string(grad.item<int64_t>()) + " ";
      });
  return {sums, grads[0]};
}

// d/dw = 2 x w + v = 17, d/dv = w = 3, d/dx = w^2 = 9.
TEST(RunBackward, GivesTheSumOfEachLeafOnceAndLeavesGradAlone) {
  const Graph graph;
  int hooks = 0;
  graph.w.register_hook([&](const Tensor&) { ++hooks; });
  const auto [sums, input] = run(graph, /*keep_graph=*/false);
  EXPECT_EQ(sums, "1:3 0:17 ");
  EXPECT_EQ(input.item<double>(), 9);
  EXPECT_FALSE(graph.w.grad().defined());
  EXPECT_FALSE(graph.v.grad().defined());
  EXPECT_EQ(hooks, 0);
}

TEST(RunBackward, SkipsWhatIsNotWanted) {
  const Graph graph;
  EXPECT_EQ(run(graph, true, {false, true}).first, "1:3 ");
  EXPECT_EQ(run(graph, true, {true, false}).first, "0:17 ");
  const auto [sums, input] = run(graph, true, {false, false});
  EXPECT_EQ(sums, "");
  EXPECT_EQ(input.item<double>(), 9);
  EXPECT_FALSE(run(graph, true, {true, true}, false).second.defined());
  EXPECT_FALSE(run(graph, true, {false, false}, false).second.defined());
}

TEST(RunBackward, KeepsTheGraphIfAskedFor) {
  const Graph graph;
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(run(graph, true).first, "1:3 0:17 ");
  }
  EXPECT_EQ(run(graph, false).first, "1:3 0:17 ");
  EXPECT_NE(error_of([&] { run(graph, false); }).find("second time"),
            std::string::npos);
}

TEST(RunBackward, GivesLeavesBackTheirOwnNodes) {
  const Graph graph;
  run(graph, /*keep_graph=*/true);
  const Leaves leaves = graph.leaves();
  ASSERT_EQ(leaves.tensors.size(), 2u);
  EXPECT_TRUE(leaves.tensors[0].is_same(graph.w));
  EXPECT_TRUE(leaves.tensors[1].is_same(graph.v));
  EXPECT_EQ(leaves.leaf_edges.size(), 3u);
}

TEST(RunBackward, TakesUndefinedGradientsAndOutputsThatAreLeaves) {
  const Tensor w = scalar(3, true), v = scalar(5, true);
  const edge_list outputs = {gradient_edge(w), Edge(), gradient_edge(v * 2),
                             gradient_edge(w)};
  std::string sums;
  run_backward(outputs, {scalar(4), scalar(9), Tensor(), scalar(6)}, {}, false,
               find_leaves(outputs, {}), {true, true},
               [&](std::size_t leaf, const Tensor& grad) {
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
