#include "gpipe/testing/models.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <string>

namespace gpipe::testing {
namespace {

using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns a state with an integer buffer and an undefined gradient.
StepState state() {
  return {torch::zeros({2}),
          {torch::zeros({2}), Tensor()},
          {torch::zeros({2}), torch::zeros({}, torch::kLong)}};
}

TEST(StepState, HasNoDifferenceFromItsEqual) {
  EXPECT_EQ(difference(state(), state()), "");
  EXPECT_EQ(distance(state(), state()), 0);
}

TEST(StepState, DiffersInAnyValue) {
  const auto expect = [](const StepState& other, const std::string& what,
                         double how_far) {
    EXPECT_EQ(difference(other, state()), what);
    EXPECT_EQ(difference(state(), other), what);
    EXPECT_EQ(distance(other, state()), how_far) << what;
    EXPECT_EQ(distance(state(), other), how_far) << what;
  };
  // The other element, and the tensors after the changed one, are equal.
  for (const double value : {3.0, kInfinity, std::nan("")}) {
    const double how_far = std::isnan(value) ? kInfinity : value;
    StepState output = state(), input = state(), buffer = state();
    output.output[0] = value;
    expect(output, "output", how_far);
    input.grads[0][0] = value;
    expect(input, "gradient of the input", how_far);
    buffer.buffers[0][0] = value;
    expect(buffer, "buffer 0", how_far);
  }
  StepState parameter = state(), integer = state();
  parameter.grads[1] = torch::zeros({2});
  expect(parameter, "gradient of parameter 0", kInfinity);
  integer.buffers[1].fill_(2);
  expect(integer, "buffer 1", 2);
}

TEST(StepState, DiffersInSizes) {
  StepState output = state(), grads = state(), buffers = state();
  output.output = torch::zeros({1});  // would be broadcast
  grads.grads.pop_back();
  buffers.buffers.pop_back();
  EXPECT_EQ(difference(output, state()), "output");
  EXPECT_EQ(difference(grads, state()), "number of gradients");
  EXPECT_EQ(difference(state(), grads), "number of gradients");
  EXPECT_EQ(difference(buffers, state()), "number of buffers");
  EXPECT_EQ(difference(state(), buffers), "number of buffers");
  for (const StepState& other : {output, grads, buffers}) {
    EXPECT_EQ(distance(other, state()), kInfinity);
    EXPECT_EQ(distance(state(), other), kInfinity);
  }
}

TEST(StepState, OfNaNsIsAtADistanceFromItself) {
  StepState nans = state();
  nans.output.fill_(std::nan(""));
  EXPECT_EQ(distance(nans, nans), kInfinity);
}

}  // namespace
}  // namespace gpipe::testing
