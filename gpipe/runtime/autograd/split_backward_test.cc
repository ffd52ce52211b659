#include <ATen/SequenceNumber.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;
using torch::autograd::Edge;
using torch::autograd::edge_list;
namespace nn = torch::nn;

// A piece of graph: a function of `input`, with the leaves that it uses.
struct Piece {
  std::function<Tensor(Tensor)> function;
  std::vector<Tensor> leaves;
  Tensor input;
};

Piece piece_of(nn::Sequential model, Tensor input) {
  return {[model](const Tensor& x) mutable { return model->forward(x); },
          model->parameters(), std::move(input)};
}

struct Gradients {
  Tensor input;
  std::vector<Tensor> leaves;
};

Tensor some_gradient(const Tensor& output) {
  return torch::linspace(-1, 1, output.numel(),
                         output.options().requires_grad(false))
      .view(output.sizes());
}

// Returns a sink that stores the gradients of the leaves in `asked` in
// `result`, in the order of `asked`. Each leaf may come once.
LeafSink into(std::vector<Tensor>& result, const Subgraph& graph,
              const std::vector<Tensor>& asked) {
  result.resize(asked.size());
  return [&](std::size_t leaf, const Tensor& grad) {
    for (std::size_t k = 0; k < asked.size(); ++k) {
      if (!asked[k].is_same(graph.leaves()[leaf])) continue;
      EXPECT_FALSE(result[k].defined()) << "leaf " << k << " comes twice";
      result[k] = grad;
    }
  };
}

Gradients whole(Subgraph graph, std::vector<Tensor> grads,
                const std::vector<Tensor>& asked) {
  Gradients result;
  auto inputs = graph.backward(std::move(grads), /*keep_graph=*/false,
                               /*want_input=*/true,
                               std::vector<bool>(graph.leaves().size(), true),
                               into(result.leaves, graph, asked));
  if (!inputs.empty()) result.input = inputs[0];
  return result;
}

Gradients in_two_parts(Subgraph graph, std::vector<Tensor> grads,
                       const std::vector<Tensor>& asked) {
  Gradients result;
  auto inputs = graph.backward_input(std::move(grads));
  if (!inputs.empty()) result.input = inputs[0];
  graph.backward_weight(into(result.leaves, graph, asked));
  return result;
}

template <typename Backward>
Gradients run(Backward run, const Piece& piece, bool input_wanted) {
  const auto inputs = graph_inputs({{piece.input, input_wanted}}, false);
  const uint64_t begin = at::sequence_number::peek();
  const Tensor output = piece.function(inputs[0]);
  return run(Subgraph(begin, gradient_edges(inputs), {output}),
             {some_gradient(output)}, piece.leaves);
}

using Backward = Gradients (*)(Subgraph, std::vector<Tensor>,
                               const std::vector<Tensor>&);
Gradients whole(const Piece& piece, bool input_wanted = true) {
  return run<Backward>(whole, piece, input_wanted);
}
Gradients in_two_parts(const Piece& piece, bool input_wanted = true) {
  return run<Backward>(in_two_parts, piece, input_wanted);
}

// Returns the largest difference divided by the largest value of `b`; 0 for
// equal bits, and 1 if a value is NaN.
double distance(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined() ? 0 : 1;
  if (a.equal(b)) return 0;
  const double apart = ((a - b).abs().max() / b.abs().max()).item<double>();
  return std::isnan(apart) ? 1 : apart;
}

double distance(const Gradients& a, const Gradients& b) {
  double result = distance(a.input, b.input);
  EXPECT_EQ(a.leaves.size(), b.leaves.size());
  for (std::size_t k = 0; k < a.leaves.size(); ++k) {
    result = std::max(result, distance(a.leaves[k], b.leaves[k]));
  }
  return result;
}

class SplitBackwardTest : public ::testing::Test {
 protected:
  SplitBackwardTest() { torch::manual_seed(0); }
};

TEST_F(SplitBackwardTest, LinearLayersGiveTheBitsOfTheWhole) {
  const Piece piece =
      piece_of(nn::Sequential(nn::Linear(5, 7), nn::ReLU(), nn::Linear(7, 3)),
               torch::randn({4, 5}));
  EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0);
}

TEST_F(SplitBackwardTest, ConvolutionsAndNormsGiveTheBitsOfTheWhole) {
  const Piece piece = piece_of(
      nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)),
                     nn::BatchNorm2d(8), nn::ReLU(),
                     nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 4, 2)),
                     nn::GroupNorm(2, 4), nn::Flatten(),
                     nn::LayerNorm(nn::LayerNormOptions({4 * 7 * 7})),
                     nn::Linear(4 * 7 * 7, 2)),
      torch::randn({2, 3, 6, 6}));
  EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0);
}

TEST_F(SplitBackwardTest, SequencesOfThreeDimensionsGiveTheBitsOfTheWhole) {
  const Piece piece =
      piece_of(nn::Sequential(nn::Linear(6, 12), nn::GELU(), nn::Linear(12, 6)),
               torch::randn({2, 5, 6}));
  EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0);
}

TEST_F(SplitBackwardTest, WeightsBehindOtherOperatorsAreReached) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  const Tensor scale = torch::randn({4, 1}, torch::requires_grad());
  const Piece piece{[&](const Tensor& x) {
                      // As in weight normalisation.
                      return torch::matmul(
                          x, scale * weight / weight.norm(2, {1}, true));
                    },
                    {weight, scale},
                    torch::randn({3, 4})};
  EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0);
}

TEST_F(SplitBackwardTest, WeightsThatAreWrittenIntoViewsAreReached) {
  const Tensor weight = torch::randn({4, 3}, torch::requires_grad());
  const Tensor scale = torch::randn({3}, torch::requires_grad());
  const Piece piece{[&](const Tensor& x) {
                      Tensor y = torch::matmul(x, weight).repeat({1, 2});
                      y.narrow(1, 0, 3).mul_(scale);
                      y.narrow(1, 3, 3).addmm_(x, weight);
                      // The transposed weight is used by a product, too.
                      const Tensor turned = weight.t();
                      Tensor z = torch::matmul(y.narrow(1, 0, 4), weight);
                      z = torch::cat({z, torch::matmul(z, turned)}, 1);
                      z.narrow(1, 3, 4).narrow(0, 0, 3).mul_(turned);
                      return z.tanh();
                    },
                    {weight, scale},
                    torch::randn({5, 4})};
  for (const bool input_wanted : {true, false}) {
    EXPECT_EQ(
        distance(in_two_parts(piece, input_wanted), whole(piece, input_wanted)),
        0);
  }
  const Tensor y = piece.function(piece.input);
  y.backward(some_gradient(y));
  const Gradients parts = in_two_parts(piece);
  EXPECT_EQ(distance(parts.leaves[0], weight.grad()), 0);
  EXPECT_EQ(distance(parts.leaves[1], scale.grad()), 0);
}

TEST_F(SplitBackwardTest, BroadcastWeightsKeepTheirShape) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  const Piece piece{
      [&](const Tensor& x) { return torch::matmul(x, weight).tanh(); },
      {weight},
      torch::randn({2, 3, 4})};
  const Gradients split = in_two_parts(piece);
  EXPECT_EQ(split.leaves[0].sizes(), weight.sizes());
  EXPECT_EQ(distance(split, whole(piece)), 0);
}

// A weight is used four times, each time in one of these ways. The first two
// are products. The last two run in the input part.
Tensor use(int way, const Tensor& x, const Tensor& weight) {
  switch (way) {
    case 0:
      return torch::mm(x, weight);
    case 1:
      return torch::linear(x, weight);
    case 2:
      return x * weight;
    default:
      return x + weight.sin();
  }
}

TEST_F(SplitBackwardTest, UsesOfAWeightAreSummedInTheOrderOfTheWhole) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  for (int ways = 0; ways < 256; ++ways) {
    const Piece piece{[&](Tensor x) {
                        for (int k = 0, rest = ways; k < 4; ++k, rest /= 4) {
                          x = use(rest % 4, x, weight).tanh();
                        }
                        return x;
                      },
                      {weight},
                      torch::randn({4, 4})};
    EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0) << ways;
  }
}

// The weight is used by way of one tensor, whose gradient must be complete
// before its operator runs.
TEST_F(SplitBackwardTest, ATensorOfAWeightIsSummedBeforeItsOperatorRuns) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  const std::vector<std::function<Tensor()>> tensors = {
      [&] { return weight.t(); },
      [&] { return weight.tanh(); },
      [&] {
        return weight.view({16}).view({4, 4});
      },
      [&] { return weight.to(torch::kBFloat16).to(torch::kFloat); },
      // The gradient arrives at the second input of the node.
      [&] {
        return torch::cat({weight.tanh(), weight}).split(4)[1];
      },
      [&] {
        return weight[0].expand({4, 4});
      },
      [&] { return (weight.tanh() * weight).t(); },
  };
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    for (int ways = 0; ways < 64; ++ways) {
      const Piece piece{[&](Tensor x) {
                          const Tensor tensor = tensors[k]();
                          for (int k = 0, rest = ways; k < 3; ++k, rest /= 4) {
                            x = use(rest % 4, x, tensor).tanh();
                          }
                          return x;
                        },
                        {weight},
                        torch::randn({4, 4})};
      EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0)
          << "tensor " << k << ", ways " << ways;
    }
  }
}

TEST_F(SplitBackwardTest, ACastOfAWeightIsSummedInItsOwnPrecision) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  const Piece piece{[&](Tensor x) {
                      const Tensor cast = weight.to(torch::kBFloat16);
                      for (int k = 0; k < 3; ++k) {
                        x = torch::linear(x.to(torch::kBFloat16), cast).tanh();
                      }
                      return x.to(torch::kFloat);
                    },
                    {weight},
                    torch::randn({3, 4})};
  EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0);
}

TEST_F(SplitBackwardTest, ALoopAddsUpItsStepsInTheOrderOfTheWhole) {
  nn::Linear input(4, 6), hidden(6, 6);
  std::vector<Tensor> leaves = input->parameters();
  for (const Tensor& each : hidden->parameters()) leaves.push_back(each);
  const Piece piece{[&](const Tensor& x) {
                      Tensor state = torch::zeros({3, 6});
                      for (const Tensor& step : x.unbind(1)) {
                        state = torch::tanh(input(step) + hidden(state));
                      }
                      return state;
                    },
                    leaves, torch::randn({3, 5, 4})};
  EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0);
}

TEST_F(SplitBackwardTest, ABroadcastWeightIsSummedInTheOrderOfTheWhole) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  const Piece piece{[&](Tensor x) {
                      for (int k = 0; k < 3; ++k) {
                        x = torch::bmm(x, weight.expand({2, 4, 4})).tanh();
                        x = torch::matmul(x, weight) * weight;
                      }
                      return x;
                    },
                    {weight},
                    torch::randn({2, 4, 4})};
  EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0);
}

// Cells of several micro-batches lead to one graph, so none may change it.
TEST_F(SplitBackwardTest, TheGraphOfACapturedTensorStaysAsItIs) {
  for (const bool input_wanted : {true, false}) {
    const Tensor w = torch::randn({4, 4}, torch::requires_grad());
    const Tensor turned = w.t();
    const Tensor sum = turned.sum(0);
    const Piece piece{[&](const Tensor& x) {
                        return (x + sum).mm(turned).mm(turned.mm(w)) + sum;
                      },
                      {w},
                      torch::randn({3, 4})};
    const Gradients expected = whole(piece, input_wanted);
    for (int microbatch = 0; microbatch < 3; ++microbatch) {
      EXPECT_EQ(distance(in_two_parts(piece, input_wanted), expected), 0);
    }
    EXPECT_EQ(distance(whole(piece, input_wanted), expected), 0);
    // As if the user added the sum of the tensor to the loss.
    sum.sum().backward();
    EXPECT_TRUE(w.grad().equal(torch::ones_like(w)));
  }
}

// The nodes of another thread look like those of a captured tensor. With inner
// edges, the weight part runs them and all nodes behind them.
TEST_F(SplitBackwardTest, ALayerMayWorkOnAnotherThread) {
  const nn::Linear first(3, 3), second(3, 3), third(3, 3), last(3, 3);
  const Tensor x = torch::randn({4, 3});
  std::vector<Tensor> leaves;
  for (nn::Linear each : {first, second, third, last}) {
    for (const Tensor& leaf : each->parameters()) leaves.push_back(leaf);
  }
  const auto run = [&](Backward run) {
    const uint64_t begin = at::sequence_number::peek();
    nn::Linear a = first, b = second, c = third, d = last;
    const Tensor inner = torch::tanh(a(x));
    const Tensor y = torch::tanh(b(inner));
    Tensor beside;
    std::thread([&] { beside = torch::tanh(c(y)); }).join();
    const Tensor output = d(y * 0.5 + beside);
    return run(
        Subgraph(begin, {}, {output}, /*skips=*/0, gradient_edges({inner})),
        {some_gradient(output)}, leaves);
  };
  EXPECT_LT(distance(run(in_two_parts), run(whole)), 1e-5);
}

TEST_F(SplitBackwardTest, ProductsOfTwoActivationsAreNoWeights) {
  nn::Linear query(4, 4), key(4, 4);
  std::vector<Tensor> leaves = query->parameters();
  for (const Tensor& each : key->parameters()) leaves.push_back(each);
  const Piece piece{[&](const Tensor& x) {
                      return torch::softmax(
                          torch::matmul(query(x), key(x).transpose(-1, -2)),
                          -1);
                    },
                    leaves, torch::randn({2, 3, 4})};
  EXPECT_EQ(distance(in_two_parts(piece), whole(piece)), 0);
}

TEST_F(SplitBackwardTest, FrozenAndUnusedWeightsHaveNoGradient) {
  nn::Sequential model(nn::Linear(4, 4), nn::Linear(4, 4));
  model[0]->as<nn::Linear>()->weight.requires_grad_(false);
  Piece piece = piece_of(model, torch::randn({2, 4}));
  piece.leaves.push_back(torch::randn({2}, torch::requires_grad()));
  const Gradients split = in_two_parts(piece);
  EXPECT_FALSE(split.leaves[0].defined());
  EXPECT_TRUE(split.leaves[1].defined());
  EXPECT_FALSE(split.leaves.back().defined());
  EXPECT_EQ(distance(split, whole(piece)), 0);
}

TEST_F(SplitBackwardTest, WithoutAnInputEverythingIsLeftForTheWeights) {
  const Piece piece =
      piece_of(nn::Sequential(nn::Linear(5, 7), nn::Tanh(), nn::Linear(7, 3)),
               torch::randn({4, 5}));
  const Gradients split = in_two_parts(piece, /*input_wanted=*/false);
  EXPECT_FALSE(split.input.defined());
  EXPECT_EQ(distance(split, whole(piece, false)), 0);
}

TEST_F(SplitBackwardTest, AnInnerPlaceStandsForAnInputThatNobodyWants) {
  nn::Linear first(5, 7), second(7, 7), third(7, 3);
  std::vector<Tensor> leaves;
  for (const nn::Linear& each : {first, second, third}) {
    for (const Tensor& leaf : each->parameters()) leaves.push_back(leaf);
  }
  const Tensor x = torch::randn({4, 5});
  int inner_calls = 0, first_calls = 0;
  Tensor inner, output, grad;
  const auto forward = [&] {
    const Tensor product = first(x);
    inner = torch::tanh(product);
    output = third(torch::relu(second(inner)));
    product.register_hook([&](const Tensor&) { ++first_calls; });
    inner.register_hook([&](const Tensor& grad) {
      ++inner_calls;
      return 2 * grad;
    });
    grad = some_gradient(output);
    inner_calls = first_calls = 0;
  };
  forward();
  const auto expected = whole(Subgraph(0, {}, {output}), {grad}, leaves).leaves;

  forward();
  // The edge is given twice, because a layer may return a tensor more than
  // once.
  Subgraph graph(0, {Edge()}, {output}, /*skips=*/0,
                 gradient_edges({inner, inner}));
  EXPECT_FALSE(graph.backward_input({grad})[0].defined());
  EXPECT_EQ(first_calls, 0);
  std::vector<Tensor> found;
  graph.backward_weight(into(found, graph, leaves));
  EXPECT_EQ(inner_calls, 1);
  EXPECT_EQ(first_calls, 1);
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    EXPECT_TRUE(found[k].equal(expected[k])) << k;
  }
}

// As in the first partition of a model with tied embeddings: the weight goes
// to another partition, and the layers use it on both sides of the inner edge.
TEST_F(SplitBackwardTest, UsesOnBothSidesOfAnInnerPlaceAreSummedAsInTheWhole) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  const Tensor x = torch::randn({4, 4}), other = torch::randn({4, 4});
  for (int ways = 0; ways < 256; ++ways) {
    const auto forward = [&] {
      Tensor y = x;
      edge_list inner;
      int rest = ways;
      for (int k = 0; k < 4; ++k, rest /= 4) {
        y = use(rest % 4, y, weight).tanh();
        if (k == 1) inner = {gradient_edge(y)};
      }
      return Subgraph(0, {}, {weight, y}, /*skips=*/0, inner);
    };
    const auto expected = whole(forward(), {other, other}, {weight});
    const auto found = in_two_parts(forward(), {other, other}, {weight});
    EXPECT_TRUE(found.leaves[0].equal(expected.leaves[0])) << ways;
  }
}

// One inner edge leads to another by way of a tensor that other layers use, as
// if the first layer had stashed it.
TEST_F(SplitBackwardTest, ANodeBetweenInnerPlacesRunsOnce) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  const Tensor x = torch::randn({4, 4});
  const auto forward = [&] {
    const Tensor a = torch::mm(x, weight).sigmoid();
    const Tensor between = torch::mm(a, weight).sigmoid();
    const Tensor b = torch::mm(between, weight).sigmoid();
    return Subgraph(0, {}, {(a * between * b).tanh()}, /*skips=*/0,
                    gradient_edges({a, b}));
  };
  const Tensor grad = torch::randn({4, 4});
  const auto expected = whole(forward(), {grad}, {weight});
  const auto found = in_two_parts(forward(), {grad}, {weight});
  EXPECT_TRUE(found.leaves[0].equal(expected.leaves[0]));
}

TEST_F(SplitBackwardTest, OutputsThatAreOneTensorAreSummedAsInTheWhole) {
  const Tensor weight = torch::randn({4, 4}, torch::requires_grad());
  const Tensor x = torch::randn({4, 4});
  std::vector<Tensor> grads;
  for (int k = 0; k < 4; ++k) grads.push_back(torch::randn({4, 4}));
  const auto forward = [&] {
    const Tensor y = torch::mm(x, weight).tanh();
    return Subgraph(0, {}, {weight, y, weight, y});
  };
  const auto expected = whole(forward(), grads, {weight});
  const auto found = in_two_parts(forward(), grads, {weight});
  EXPECT_TRUE(found.leaves[0].equal(expected.leaves[0]));
}

// The first layer may stash a parameter, although its output has no graph.
TEST_F(SplitBackwardTest, SkipTensorsThatAreLeavesGetTheirOwnGradients) {
  const Tensor a = torch::ones({2}).requires_grad_();
  const Tensor b = torch::ones({3}).requires_grad_();
  const Tensor ga = torch::full({2}, 5.0), gb = torch::full({3}, 7.0);
  const Tensor frozen = torch::ones({1});
  for (const Backward run : {Backward(whole), Backward(in_two_parts)}) {
    const Gradients grads = run(Subgraph(0, {}, {frozen, a, b}, /*skips=*/2),
                                {Tensor(), ga, gb}, {a, b});
    ASSERT_TRUE(grads.leaves[0].defined() && grads.leaves[1].defined());
    EXPECT_TRUE(grads.leaves[0].equal(ga));
    EXPECT_TRUE(grads.leaves[1].equal(gb));
  }
}

TEST_F(SplitBackwardTest, AnOutputWithoutGradientLeavesNothing) {
  const Piece piece =
      piece_of(nn::Sequential(nn::Linear(5, 7)), torch::randn({4, 5}));
  const auto inputs = graph_inputs({{piece.input, true}}, false);
  Subgraph graph(0, gradient_edges(inputs), {piece.function(inputs[0])});
  EXPECT_FALSE(graph.backward_input({Tensor()})[0].defined());
  graph.backward_weight([](std::size_t, const Tensor&) { ADD_FAILURE(); });
}

struct CountedSquare : torch::autograd::Function<CountedSquare> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x, const Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * x * weight;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    ++calls;
    const auto saved = context->get_saved_variables();
    return {2 * grads[0] * saved[0] * saved[1],
            (grads[0] * saved[0] * saved[0]).sum()};
  }
  static inline int calls = 0;
};

TEST_F(SplitBackwardTest, ACustomFunctionRunsOnce) {
  const Tensor weight = torch::randn({}, torch::requires_grad());
  const Piece piece{
      [&](const Tensor& x) { return CountedSquare::apply(x, weight); },
      {weight},
      torch::randn({3})};
  const Gradients expected = whole(piece);
  CountedSquare::calls = 0;
  EXPECT_EQ(distance(in_two_parts(piece), expected), 0);
  EXPECT_EQ(CountedSquare::calls, 1);
}

TEST_F(SplitBackwardTest, HooksOfTensorsAndOfLeavesAreLeftInPeace) {
  nn::Linear first(3, 3), second(3, 3);
  int calls = 0, leaf_calls = 0;
  second->weight.register_hook([&](const Tensor&) { ++leaf_calls; });
  const Piece piece{[&](const Tensor& x) {
                      const Tensor inner = first(x);
                      inner.register_hook([&](const Tensor& grad) {
                        ++calls;
                        return 2 * grad;
                      });
                      return second(inner);
                    },
                    {first->weight, second->weight},
                    torch::randn({2, 3})};
  const Gradients expected = whole(piece);
  calls = 0;
  EXPECT_EQ(distance(in_two_parts(piece), expected), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(leaf_calls, 0);
  EXPECT_FALSE(second->weight.grad().defined());
}

// Both uses of the product get an infinite gradient, and the sum is NaN, which
// the product alone takes.
TEST_F(SplitBackwardTest, AnomalyModeNamesTheSameNodeAsForTheWholeBackward) {
  nn::Linear linear(3, 2);
  const auto of_linear = [&](const Tensor& x) {
    const Tensor y = linear(x);
    return (y - y).sqrt();
  };
  const Piece piece{of_linear, linear->parameters(), torch::randn({2, 3})};
  const torch::autograd::DetectAnomalyGuard anomaly(/*check_nan=*/true);
  for (const bool input_wanted : {true, false}) {
    const std::string expected =
        testing::error_of([&] { whole(piece, input_wanted); });
    EXPECT_THAT(expected, ::testing::HasSubstr("AddmmBackward0"));
    EXPECT_EQ(testing::error_of([&] { in_two_parts(piece, input_wanted); }),
              expected);
  }
}

TEST_F(SplitBackwardTest, AnomalyModeLeavesTheGradientsAsTheyAre) {
  const Piece piece =
      piece_of(nn::Sequential(nn::Linear(3, 4), nn::Tanh(), nn::Linear(4, 2)),
               torch::randn({2, 3}));
  for (const bool input_wanted : {true, false}) {
    const Gradients expected = whole(piece, input_wanted);
    const torch::autograd::DetectAnomalyGuard anomaly(/*check_nan=*/true);
    EXPECT_EQ(distance(in_two_parts(piece, input_wanted), expected), 0);
  }
}

// Between the two parts each product keeps its input and its incoming gradient,
// and other operators keep nothing.
TEST_F(SplitBackwardTest, BetweenThePartsOnlyProductsKeepMemory) {
  instruments::CountingAllocator::install();
  constexpr int64_t kRows = 64, kWidth = 32;
  constexpr int64_t kActivation = kRows * kWidth * sizeof(float);
  nn::Linear linear(nn::LinearOptions(kWidth, kWidth).bias(false));
  const auto inputs =
      graph_inputs({{torch::randn({kRows, kWidth}), true}}, false);
  const int64_t before = instruments::CountingAllocator::live_bytes();
  // sigmoid and tanh save their results, the product saves its input.
  Tensor output = linear(inputs[0].sigmoid()).tanh().sigmoid();
  Subgraph graph(0, gradient_edges(inputs), {output});
  Tensor grad = torch::ones_like(output);
  output.reset();
  EXPECT_EQ(instruments::CountingAllocator::live_bytes() - before,
            4 * kActivation);
  graph.backward_input({std::move(grad)});
  EXPECT_EQ(instruments::CountingAllocator::live_bytes() - before,
            2 * kActivation);
  graph.backward_weight([](std::size_t, const Tensor&) {});
  EXPECT_EQ(instruments::CountingAllocator::live_bytes() - before, 0);
}

TEST_F(SplitBackwardTest, TheWeightPartFreesTheMemoryOfEachProductInTurn) {
  instruments::CountingAllocator::install();
  constexpr int64_t kRows = 64, kWidth = 32;
  constexpr int64_t kActivation = kRows * kWidth * sizeof(float);
  constexpr int64_t kWeight = kWidth * kWidth * sizeof(float);
  const auto linear = [] {
    return nn::Linear(nn::LinearOptions(kWidth, kWidth).bias(false));
  };
  nn::Linear a = linear(), b = linear(), c = linear();
  const auto inputs =
      graph_inputs({{torch::randn({kRows, kWidth}), true}}, false);
  const int64_t before = instruments::CountingAllocator::live_bytes();
  Tensor output = c(b(a(inputs[0].sigmoid()).sigmoid()).sigmoid());
  Subgraph graph(0, gradient_edges(inputs), {output});
  Tensor grad = torch::ones_like(output);
  output.reset();
  graph.backward_input({std::move(grad)});
  std::vector<int64_t> live;
  graph.backward_weight([&](std::size_t, const Tensor&) {
    live.push_back(instruments::CountingAllocator::live_bytes() - before);
  });
  EXPECT_THAT(live, ElementsAre(4 * kActivation + kWeight,
                                2 * kActivation + kWeight, kWeight));
}

}  // namespace
}  // namespace gpipe::internal
