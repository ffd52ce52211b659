#include "gpipe/runtime/autograd/accumulate.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

namespace gpipe::internal {
namespace {

using torch::Tensor;

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
