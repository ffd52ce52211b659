#include "training/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models/testing/files.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Model {
  Model() : optimizer(parameters(), torch::optim::SGDOptions(0.1)) {}
  std::vector<Tensor> parameters() const {
    return {first->weight, first->bias, second->weight, second->bias};
  }
  Tensor loss(const Tensor& x) {
    return second->forward(first->forward(x).sigmoid()).pow(2).mean();
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> values;
    for (const Tensor& each : parameters()) {
      values.push_back(each.detach().clone());
    }
    return values;
  }

  torch::nn::Linear first{3, 4}, second{4, 2};
  torch::optim::SGD optimizer;
};

bool equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool result = a.size() == b.size();
  for (std::size_t k = 0; result && k < a.size(); ++k) {
    result = a[k].equal(b[k]);
  }
  return result;
}

// Sets all gradients to `value`.
void set_grads(Model& model, float value) {
  for (const Tensor& each : model.parameters()) {
    each.mutable_grad() = torch::full_like(each.detach(), value);
  }
}

TEST(GradScalerTest, TrainsToTheBitAsWithoutIt) {
  torch::manual_seed(1);
  Model plain;
  torch::manual_seed(1);
  Model scaled;
  GradScaler scaler(GradScalerOptions().growth_interval(2));
  auto loss = scaler.scaled([&](const Tensor& output, const Tensor&) {
    return output.pow(2).mean();
  });
  for (int step = 0; step < 6; ++step) {
    const Tensor x = torch::randn({5, 3});
    plain.optimizer.zero_grad();
    plain.loss(x).backward();
    plain.optimizer.step();
    scaled.optimizer.zero_grad();
    loss(scaled.second->forward(scaled.first->forward(x).sigmoid()), Tensor())
        .backward();
    EXPECT_TRUE(scaler.step(scaled.optimizer));
    scaler.update();
    EXPECT_TRUE(equal(plain.values(), scaled.values())) << step;
  }
  EXPECT_EQ(scaler.scale(), 65536 * 8);
}

TEST(GradScalerTest, AnInfinityAnywhereLeavesTheStepOut) {
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    for (std::size_t where = 0; where < 4; ++where) {
      Model model;
      GradScaler scaler;
      set_grads(model, 1);
      model.parameters()[where].mutable_grad().view(-1)[1] = bad;
      const auto before = model.values();
      EXPECT_FALSE(scaler.step(model.optimizer));
      EXPECT_TRUE(equal(model.values(), before));
      scaler.update();
      EXPECT_EQ(scaler.scale(), 32768);
      set_grads(model, 1);
      EXPECT_TRUE(scaler.step(model.optimizer));
      EXPECT_FALSE(equal(model.values(), before));
    }
  }
}

TEST(GradScalerTest, AnInfinityOfAnotherProcessDoesToo) {
  std::vector<bool> asked;
  bool elsewhere = false;
  GradScaler scaler(GradScalerOptions().any([&](bool here) {
    asked.push_back(here);
    return here || elsewhere;
  }));
  Model model;
  set_grads(model, 1);
  EXPECT_TRUE(scaler.step(model.optimizer));
  scaler.update();
  elsewhere = true;
  set_grads(model, 1);
  EXPECT_FALSE(scaler.step(model.optimizer));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 32768);
  elsewhere = false;
  set_grads(model, kInfinity);
  EXPECT_FALSE(scaler.step(model.optimizer));
  EXPECT_EQ(asked, (std::vector<bool>{false, false, true}));
}

// As in Python: 30 * 4096 is more than float16 can represent.
TEST(GradScalerTest, ScalesALossOfHalfPrecisionInFloat) {
  const GradScaler scaler(GradScalerOptions().init_scale(4096));
  for (const auto& [dtype, scaled] : {std::pair{torch::kHalf, torch::kFloat},
                                      {torch::kBFloat16, torch::kFloat},
                                      {torch::kFloat, torch::kFloat},
                                      {torch::kDouble, torch::kDouble}}) {
    const Tensor loss = scaler.scale(torch::full({}, 30, dtype));
    EXPECT_EQ(loss.scalar_type(), scaled);
    EXPECT_EQ(loss.item<double>(), 30 * 4096);
  }
}

TEST(GradScalerTest, UnscalesATensorOnceThatAnOptimizerHasTwice) {
  const Tensor tensor = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD optimizer(std::vector<Tensor>{tensor, tensor},
                              torch::optim::SGDOptions(0.1));
  GradScaler scaler(GradScalerOptions().init_scale(4));
  tensor.mutable_grad() = torch::full({2}, 8.0f);
  scaler.unscale_(optimizer);
  EXPECT_TRUE(tensor.grad().equal(torch::full({2}, 2.0f)));
}

TEST(GradScalerTest, UnscalesOnceForWhoeverClips) {
  Model model;
  GradScaler scaler(GradScalerOptions().init_scale(4));
  set_grads(model, 8);
  scaler.unscale_(model.optimizer);
  for (const Tensor& each : model.parameters()) {
    EXPECT_TRUE(each.grad().eq(2).all().item<bool>());
  }
  EXPECT_THROW(scaler.unscale_(model.optimizer), c10::Error);
  EXPECT_TRUE(scaler.step(model.optimizer));
  for (const Tensor& each : model.parameters()) {
    EXPECT_TRUE(each.grad().eq(2).all().item<bool>());
  }
}

TEST(GradScalerTest, TheScaleFollowsItsRules) {
  Model model;
  GradScaler scaler(GradScalerOptions()
                        .init_scale(8)
                        .growth_factor(4)
                        .backoff_factor(0.25)
                        .growth_interval(3));
  std::vector<double> scales;
  for (const bool finite :
       {true, true, true, true, true, false, true, true, true, false, false}) {
    set_grads(model, finite ? 1 : kNan);
    scaler.step(model.optimizer);
    scaler.update();
    scales.push_back(scaler.scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 32, 32, 32, 8, 8, 8, 32, 8, 2}));
  EXPECT_THROW(scaler.update(), c10::Error);
}

// As in Python, whose scale is a float32 tensor.
TEST(GradScalerTest, TheScaleIsRoundedToFloat32) {
  Model model;
  GradScaler scaler(GradScalerOptions()
                        .init_scale(0.1)
                        .growth_factor(1.1)
                        .backoff_factor(0.3)
                        .growth_interval(1));
  float expected = 0.1f;
  EXPECT_EQ(scaler.scale(), expected);
  for (const bool finite : {true, true, false}) {
    set_grads(model, finite ? 1 : kNan);
    scaler.step(model.optimizer);
    scaler.update();
    expected = static_cast<float>(expected * (finite ? 1.1 : 0.3));
    EXPECT_EQ(scaler.scale(), expected);
    EXPECT_EQ(scaler.state().scale, expected);
  }
  scaler.set_state({0.1, 0});
  EXPECT_EQ(scaler.scale(), 0.1f);
}

TEST(GradScalerTest, TheScaleStaysPositiveAndFinite) {
  Model model;
  for (const float scale : {std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::max()}) {
    GradScaler scaler(GradScalerOptions().init_scale(scale).growth_interval(1));
    set_grads(model, scale > 1 ? 1 : kNan);
    scaler.step(model.optimizer);
    scaler.update();
    EXPECT_EQ(scaler.scale(), scale);
  }
}

TEST(GradScalerTest, EachOptimizerStepsByItsOwnGradients) {
  Model one, other;
  GradScaler scaler;
  set_grads(one, 1);
  set_grads(other, kInfinity);
  EXPECT_TRUE(scaler.step(one.optimizer));
  EXPECT_FALSE(scaler.step(other.optimizer));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 32768);
}

TEST(GradScalerTest, AnOptimizerStepsOnceBetweenUpdates) {
  for (const float grad : {1.0f, kInfinity}) {
    Model one, other;
    GradScaler scaler;
    set_grads(one, grad);
    set_grads(other, 1);
    scaler.step(one.optimizer);
    const Tensor after = one.first->weight.detach().clone();
    EXPECT_THAT(
        testing::error_of([&] { scaler.step(one.optimizer); }),
        HasSubstr(
            "this optimizer has already made its step; call update() before "
            "its next step"));
    EXPECT_THAT(testing::error_of([&] { scaler.unscale_(one.optimizer); }),
                HasSubstr("already unscaled; call update()"));
    EXPECT_TRUE(one.first->weight.equal(after));
    EXPECT_TRUE(scaler.step(other.optimizer));
    scaler.update();
    set_grads(one, 1);
    scaler.unscale_(one.optimizer);
    EXPECT_TRUE(scaler.step(one.optimizer));
  }
}

TEST(GradScalerTest, AStepThatThrowsLeavesNoGradientsScaledOrDividedTwice) {
  struct Throwing : torch::optim::SGD {
    using SGD::SGD;
    Tensor step(LossClosure closure = nullptr) override {
      if (throws) throw std::runtime_error("no memory");
      return SGD::step(std::move(closure));
    }
    bool throws = true;
  };
  Model model;
  Throwing optimizer(model.parameters(), torch::optim::SGDOptions(1));
  const Tensor& weight = model.first->weight;
  {
    const torch::NoGradGuard no_grad;
    weight.zero_();
  }
  GradScaler scaler;
  set_grads(model, 65536);
  EXPECT_THROW(scaler.step(optimizer), std::runtime_error);
  optimizer.throws = false;
  set_grads(model, 65536);
  EXPECT_THAT(testing::error_of([&] { scaler.step(optimizer); }),
              HasSubstr("call update() before its next step"));
  scaler.update();
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(weight.equal(torch::full_like(weight, -1)));
}

TEST(GradScalerTest, GradientsThatWerePartlyUnscaledMakeNoStep) {
  Model model;
  bool throws = true;
  GradScaler scaler(GradScalerOptions().any([&](bool here) {
    if (throws) throw std::runtime_error("a rank is gone");
    return here;
  }));
  set_grads(model, 65536);
  EXPECT_THROW(scaler.step(model.optimizer), std::runtime_error);
  const auto before = model.values();
  EXPECT_FALSE(scaler.step(model.optimizer));
  EXPECT_TRUE(equal(model.values(), before));
  scaler.update();
  throws = false;
  set_grads(model, 32768);
  EXPECT_TRUE(scaler.step(model.optimizer));
}

TEST(GradScalerTest, ItsStateIsTakenUp) {
  Model model;
  const auto options = GradScalerOptions().growth_interval(2);
  GradScaler scaler(options), resumed(options);
  set_grads(model, 1);
  scaler.step(model.optimizer);
  scaler.update();
  resumed.set_state(scaler.state());
  set_grads(model, 1);
  resumed.step(model.optimizer);
  resumed.update();
  EXPECT_EQ(resumed.scale(), 2 * 65536);
}

TEST(GradScalerTest, SparseGradientsAreUnscaled) {
  Tensor table = torch::zeros({5, 2});
  torch::optim::SGD optimizer(std::vector<Tensor>{table.requires_grad_()}, 1);
  GradScaler scaler(GradScalerOptions().init_scale(2));
  table.mutable_grad() = torch::sparse_coo_tensor(
      torch::tensor({{1, 3, 1}}), torch::full({3, 2}, 6.0f), {5, 2});
  scaler.unscale_(optimizer);
  EXPECT_TRUE(table.grad().to_dense().equal(torch::tensor(
      {{0.f, 0.f}, {6.f, 6.f}, {0.f, 0.f}, {3.f, 3.f}, {0.f, 0.f}})));
}

TEST(GradScalerTest, WhatCannotBeIsRefused) {
  const auto refused = [](const GradScalerOptions& options,
                          const std::string& name) {
    EXPECT_THAT(testing::value_error_of([&] { GradScaler scaler(options); }),
                HasSubstr(name));
  };
  refused(GradScalerOptions().init_scale(0), "init_scale");
  refused(GradScalerOptions().init_scale(kInfinity),
          "init_scale must be positive and finite (init_scale: inf)");
  for (const double scale :
       {0.0, 1e-60, 1e60, double{kInfinity}, double{kNan}}) {
    GradScaler scaler;
    EXPECT_THAT(testing::value_error_of([&] {
                  scaler.set_state({scale, 0});
                }),
                HasSubstr("the scale must be positive and finite"));
    EXPECT_EQ(scaler.scale(), 65536);
  }
  refused(GradScalerOptions().growth_factor(1), "growth_factor");
  refused(GradScalerOptions().backoff_factor(1), "backoff_factor");
  refused(GradScalerOptions().growth_interval(0), "growth_interval");

  Tensor half = torch::zeros({3}, torch::kHalf).requires_grad_();
  half.mutable_grad() = torch::ones({3}, torch::kHalf);
  torch::optim::SGD optimizer(std::vector<Tensor>{half}, 1);
  EXPECT_THAT(testing::error_of([&] { GradScaler().unscale_(optimizer); }),
              HasSubstr("float32"));
}

}  // namespace
}  // namespace gpipe
