#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/simulated/memory.h"
#include "gpipe/testing/simulated/simulated.h"
#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using torch::Tensor;

class CopyTest : public SimulatedTest {};

bool same(const Tensor& actual, const Tensor& expected) {
  return actual.dtype() == expected.dtype() && actual.cpu().equal(expected);
}

TEST_F(CopyTest, FromTheHostAndBack) {
  const Tensor host = torch::randn({3, 5});
  const Tensor there = host.to(hpu(2));
  EXPECT_EQ(there.device(), hpu(2));
  const Tensor back = there.cpu();
  EXPECT_TRUE(back.device().is_cpu());
  EXPECT_TRUE(back.equal(host));
}

TEST_F(CopyTest, WithinADevice) {
  const Tensor host = torch::randn({3, 5}), x = host.to(hpu(1));
  EXPECT_TRUE(same(x.clone(), host));
  EXPECT_TRUE(same(torch::empty_like(x).copy_(x), host));
  EXPECT_EQ(x.to(hpu(1)).data_ptr(), x.data_ptr()) << "is none";
}

TEST_F(CopyTest, BetweenDevices) {
  const Tensor host = torch::randn({3, 5});
  const Tensor there = host.to(hpu(0)).to(hpu(3));
  EXPECT_EQ(there.device(), hpu(3));
  EXPECT_TRUE(same(there, host));
}

TEST_F(CopyTest, ChangesTheTypeOnTheWay) {
  const Tensor host = torch::randn({20}) * 10;
  const auto on = [](int device, torch::ScalarType type) {
    return torch::dtype(type).device(hpu(device));
  };
  for (const auto type : {torch::kDouble, torch::kHalf, torch::kBFloat16,
                          torch::kLong, torch::kInt, torch::kBool}) {
    const Tensor expected = host.to(type);
    const Tensor x = host.to(hpu(0));
    EXPECT_TRUE(same(host.to(on(0, type)), expected)) << type;
    EXPECT_TRUE(same(x.to(type), expected)) << type;
    EXPECT_TRUE(same(x.to(on(1, type)), expected)) << type;
    EXPECT_TRUE(same(x.to(torch::dtype(type).device(torch::kCPU)), expected))
        << type;
    EXPECT_TRUE(
        same(expected.to(on(0, torch::kFloat)), expected.to(torch::kFloat)))
        << type;
  }
}

TEST_F(CopyTest, OfTensorsThatAreNotContiguous) {
  const Tensor host =
      torch::arange(24, torch::dtype(torch::kFloat)).view({4, 6});
  const auto views = [](const Tensor& x) {
    return std::vector<Tensor>{x.t(), x.slice(1, 1, 6, 2), x.select(1, 3),
                               x.narrow(0, 2, 1).expand({3, 6})};
  };
  const Tensor x = host.to(hpu(0));
  for (std::size_t k = 0; k < views(host).size(); ++k) {
    const Tensor expected = views(host)[k];
    EXPECT_TRUE(same(views(x)[k], expected)) << k << " to the host";
    EXPECT_TRUE(same(views(x)[k].contiguous(), expected)) << k << " within";
    EXPECT_TRUE(same(views(x)[k].to(hpu(1)), expected)) << k << " between";
    EXPECT_TRUE(same(expected.to(hpu(1)), expected)) << k << " from the host";
  }
}

TEST_F(CopyTest, FromTheHostTakesTheValuesOfNow) {
  Tensor host = torch::ones({2});
  Gate gate(default_stream(0));
  const Tensor x = host.to(hpu(0), /*non_blocking=*/true);
  host.fill_(9);
  gate.open();
  EXPECT_TRUE(same(x, torch::ones({2})));
}

TEST_F(CopyTest, FromTheHostWaitsUnlessToldNotTo) {
  const Tensor x = torch::zeros({1}, hpu(0));
  busy(x, 2e-3);
  x.copy_(torch::ones({1}));
  EXPECT_THAT(memory(x), ElementsAre(1));
}

TEST_F(CopyTest, ToTheHostWaitsUnlessToldNotTo) {
  const Tensor x = torch::zeros({1}, hpu(0));
  busy(x, 2e-3);
  x.add_(1);
  EXPECT_THAT(memory(x.cpu()), ElementsAre(1));
}

TEST_F(CopyTest, ToTheHostComesLaterIfToldNotToWait) {
  const Tensor x = torch::ones({2}, hpu(0));
  synchronize();
  Tensor host = torch::zeros({2});
  Gate gate(default_stream(0));
  host.copy_(x, /*non_blocking=*/true);
  EXPECT_THAT(memory(host), ElementsAre(0, 0));
  gate.open();
  default_stream(0).synchronize();
  EXPECT_THAT(memory(host), ElementsAre(1, 1));
}

TEST_F(CopyTest, ToTheHostNeedsNoTargetThatLives) {
  const Tensor x = torch::ones({2000}, hpu(0));
  Gate gate(default_stream(0));
  x.to(torch::kCPU, /*non_blocking=*/true);
  gate.open();
  synchronize();
}

TEST_F(CopyTest, ToTheHostIsAReadThatMustBeOrdered) {
  const Tensor x = torch::ones({2}, hpu(0));
  {
    const c10::StreamGuard guard(new_stream(0));
    x.cpu();
  }
  EXPECT_THAT(take_races(), ElementsAre(HasSubstr("a copy to the host on")));
}

TEST_F(CopyTest, FromTheHostIsAWriteThatMustBeOrdered) {
  const Tensor x = torch::ones({2}, hpu(0));
  {
    const c10::StreamGuard guard(new_stream(0));
    x.copy_(torch::zeros({2}));
  }
  EXPECT_THAT(take_races(), ElementsAre(HasSubstr("a copy from the host on")));
}

TEST_F(CopyTest, BetweenDevicesIsOnTheStreamOfTheSource) {
  const Tensor x = torch::ones({2}, hpu(0));
  const c10::Stream from = new_stream(0), to = new_stream(1);
  synchronize();
  take_trace();
  {
    const c10::StreamGuard source(from);
    const c10::StreamGuard target(to);
    x.to(hpu(1));
  }
  synchronize();
  const auto trace = take_trace();
  ASSERT_THAT(trace, SizeIs(2));
  EXPECT_EQ(trace[0].name, "a copy to another device");
  EXPECT_EQ(trace[0].stream, from);
  EXPECT_EQ(trace[0].other, to);
  EXPECT_EQ(trace[1].name, "the overwriting of freed memory");
  EXPECT_EQ(trace[1].stream, to);
  EXPECT_EQ(trace[1].other, std::nullopt);
}

TEST_F(CopyTest, BetweenDevicesComesBeforeTheFutureOfTheTarget) {
  const Tensor x = torch::ones({1}, hpu(0));
  const Tensor y = torch::zeros({1}, hpu(1));
  synchronize();
  Gate gate(default_stream(0));
  y.copy_(x);
  y.add_(1);
  EXPECT_FALSE(default_stream(1).query());
  EXPECT_THAT(memory(y), ElementsAre(0));
  gate.open();
  default_stream(1).synchronize();
  EXPECT_THAT(memory(y), ElementsAre(2));
}

TEST_F(CopyTest, BetweenDevicesComesAfterThePastOfTheTarget) {
  const Tensor x = torch::ones({1}, hpu(0));
  const Tensor y = torch::zeros({1}, hpu(1));
  Tensor z;
  {
    Gate gate(default_stream(1));
    z = y + 5;
    y.copy_(x);
    // The copy also blocks the source's stream.
    EXPECT_FALSE(default_stream(0).query());
  }
  EXPECT_TRUE(same(z, torch::full({1}, 5.f)));
  EXPECT_TRUE(same(y, torch::ones({1})));
}

class CopyCostTest : public SimulatedTest {
 protected:
  // Returns how many seconds `run` takes until all devices are idle.
  template <typename Run>
  static double seconds(Run run) {
    set_delays({});
    synchronize();
    const auto start = std::chrono::steady_clock::now();
    run();
    synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start)
        .count();
  }
};

TEST_F(CopyCostTest, IsPaidByEachCopyThatLeavesADeviceOrComesToOne) {
  const Tensor host = torch::ones({4}), x = host.to(hpu(0));
  set_copy_cost({/*latency=*/3e-3, /*seconds_per_byte=*/0});
  EXPECT_GE(seconds([&] { host.to(hpu(0)); }), 3e-3);
  EXPECT_GE(seconds([&] { x.cpu(); }), 3e-3);
  EXPECT_GE(seconds([&] { x.to(hpu(1)); }), 3e-3);
  EXPECT_GE(seconds([&] { x.to(hpu(1)).to(hpu(2)).cpu(); }), 9e-3);
}

TEST_F(CopyCostTest, GrowsWithTheBytes) {
  const Tensor x = torch::ones({1000}, hpu(0));
  set_copy_cost({/*latency=*/0, /*seconds_per_byte=*/2e-6});
  EXPECT_GE(seconds([&] { x.to(hpu(1)); }), 8e-3);
  EXPECT_GE(seconds([&] { x.cpu(); }), 8e-3);
}

// ---- Tests that operators on the simulated accelerators give the same bits as
// the CPU.

using torch::Device;
using torch::indexing::Slice;
using Tensors = std::vector<Tensor>;

// Returns the same random numbers on every device.
Tensor normal(const Device& device, std::vector<std::int64_t> sizes,
              std::uint64_t seed = 1) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed)).to(device);
}

Tensor integers(const Device& device, std::int64_t end,
                std::vector<std::int64_t> sizes, std::uint64_t seed = 1) {
  return torch::randint(end, sizes, at::detail::createCPUGenerator(seed))
      .to(device);
}

torch::TensorOptions longs(const Device& device) {
  return torch::dtype(torch::kLong).device(device);
}

// Returns the value of a function of `leaves`, and the gradients of the leaves.
template <typename Function>
Tensors with_grads(Tensors leaves, Function function) {
  for (Tensor& each : leaves) each.requires_grad_();
  const Tensor value = function(leaves);
  (value * normal(value.device(), value.sizes().vec(), 99)).sum().backward();
  Tensors all = {value};
  for (const Tensor& each : leaves) all.push_back(each.grad());
  return all;
}

// Returns "" if dtypes, sizes, strides and bits are equal, else the first
// difference.
std::string difference(const Tensor& actual, const Tensor& expected) {
  if (actual.dtype() != expected.dtype()) return "other types";
  if (actual.sizes() != expected.sizes()) return "other sizes";
  if (actual.strides() != expected.strides()) return "other strides";
  const Tensor a = actual.cpu().contiguous(), b = expected.contiguous();
  return a.numel() == 0 ||
                 std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0
             ? ""
             : "other values";
}

// A function whose results are compared.
struct Case {
  Case(const char* name, std::function<Tensors(const Device&)> run)
      : name(name), run(std::move(run)) {}

  // The value of a function of random tensors, and their gradients.
  Case(const char* name, const std::vector<std::vector<std::int64_t>>& sizes,
       Tensor (*function)(const Tensors&))
      : Case(name, [=](const Device& device) {
          Tensors leaves;
          for (const auto& each : sizes) {
            leaves.push_back(normal(device, each, leaves.size() + 1));
          }
          return with_grads(std::move(leaves), function);
        }) {}

  const char* name;
  std::function<Tensors(const Device&)> run;
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

class ValueTest : public SimulatedTest,
                  public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    SimulatedTest::SetUp();
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
  }
  void TearDown() override {
    at::set_num_threads(threads_);
    SimulatedTest::TearDown();
  }

 private:
  int threads_ = 0;
};

TEST_P(ValueTest, IsThatOfTheCpu) {
  torch::manual_seed(17);
  const Tensors expected = GetParam().run(torch::kCPU);
  torch::manual_seed(17);
  const Tensors actual = GetParam().run(hpu(1));
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t k = 0; k < actual.size(); ++k) {
    EXPECT_EQ(actual[k].device(), hpu(1)) << k;
    EXPECT_EQ(difference(actual[k], expected[k]), "") << "of result " << k;
  }
}

const Case kLayers[] = {
    Case("Linear", {{6, 5}, {4, 5}, {4}},
         [](const Tensors& x) { return torch::linear(x[0], x[1], x[2]); }),
    Case(
        "Conv2d", {{2, 3, 9, 8}, {4, 3, 3, 3}, {4}},
        [](const Tensors& x) { return torch::conv2d(x[0], x[1], x[2], 2, 1); }),
    Case("Conv2dWithoutBiasInGroups", {{2, 4, 7, 7}, {6, 2, 3, 3}},
         [](const Tensors& x) {
           return torch::conv2d(x[0], x[1], {}, 1, 1,
                                /*dilation=*/2, /*groups=*/2);
         }),
    Case("Conv2dOfAFrozenInput",
         [](const Device& d) {
           const Tensor x = normal(d, {2, 3, 5, 5});
           return with_grads(
               {normal(d, {2, 3, 3, 3}, 2)},
               [&](const Tensors& w) { return torch::conv2d(x, w[0]); });
         }),
    Case("BatchNormInTraining",
         [](const Device& d) {
           const Tensor mean = torch::zeros({3}, d), var = torch::ones({3}, d);
           Tensors all = with_grads(
               {normal(d, {4, 3, 5, 5}), normal(d, {3}, 2), normal(d, {3}, 3)},
               [&](const Tensors& x) {
                 return torch::batch_norm(x[0], x[1], x[2], mean, var,
                                          /*training=*/true, 0.1, 1e-5, false);
               });
           all.insert(all.end(), {mean, var});
           return all;
         }),
    Case("LayerNorm", {{4, 3, 7}, {7}, {7}},
         [](const Tensors& x) {
           return torch::layer_norm(x[0], {7}, x[1], x[2]);
         }),
    Case("GroupNorm", {{2, 4, 5}, {4}, {4}},
         [](const Tensors& x) {
           return torch::group_norm(x[0], 2, x[1], x[2]);
         }),
    Case("MaxPool", {{2, 3, 8, 8}},
         [](const Tensors& x) { return torch::max_pool2d(x[0], 3, 2, 1); }),
    Case("CrossEntropy",
         [](const Device& d) {
           const Tensor target = integers(d, 5, {8});
           return with_grads({normal(d, {8, 5})}, [&](const Tensors& x) {
             return torch::cross_entropy_loss(x[0], target);
           });
         }),
    Case("OtherLosses", {{4, 5}, {4, 5}},
         [](const Tensors& x) {
           const Tensor p = x[0].sigmoid(), q = x[1].sigmoid().detach();
           return torch::mse_loss(x[0], x[1]) +
                  torch::mse_loss(x[0], x[1], at::Reduction::None).sum() +
                  torch::l1_loss(x[0], x[1], at::Reduction::Sum) +
                  torch::smooth_l1_loss(x[0], x[1]) +
                  torch::huber_loss(x[0], x[1], at::Reduction::Mean, 0.5) +
                  torch::binary_cross_entropy(p, q) +
                  torch::binary_cross_entropy_with_logits(x[0], q) +
                  torch::kl_div(p.log(), q) + torch::soft_margin_loss(x[0], q);
         }),
    Case("LstmCell", {{3, 4}, {3, 5}, {3, 5}, {20, 4}, {20, 5}},
         [](const Tensors& x) {
           const auto [h, c] = torch::lstm_cell(x[0], {x[1], x[2]}, x[3], x[4]);
           return h + c;
         }),
    Case("AStepOfSgdAndOneOfAdam",
         [](const Device& d) {
           Tensors weights = {normal(d, {4, 3}), normal(d, {4, 3}, 2)};
           for (Tensor& each : weights) each.requires_grad_();
           torch::optim::SGD sgd({weights[0]},
                                 torch::optim::SGDOptions(0.1).momentum(0.9));
           torch::optim::Adam adam({weights[1]},
                                   torch::optim::AdamOptions(0.1));
           for (int step = 0; step < 3; ++step) {
             (weights[0].pow(2) + weights[1].exp()).sum().backward();
             torch::nn::utils::clip_grad_norm_(weights, 1.0);
             sgd.step();
             adam.step();
             sgd.zero_grad();
             adam.zero_grad();
           }
           return weights;
         }),
};

const Case kFunctions[] = {
    Case("PointwiseFunctions", {{5, 7}},
         [](const Tensors& x) {
           return x[0].relu() + x[0].sigmoid() * x[0].tanh() +
                  x[0].exp().log1p() + x[0].abs().sqrt().reciprocal() +
                  x[0].sin().pow(3) + torch::leaky_relu(x[0]) +
                  x[0].clamp(-0.5, 0.5);
         }),
    Case("GeluAndLikeIt", {{5, 7}},
         [](const Tensors& x) {
           return torch::gelu(x[0]) + torch::gelu(x[0], "tanh") +
                  torch::silu(x[0]) + torch::mish(x[0]) + torch::elu(x[0]);
         }),
    Case("Reductions",
         [](const Device& d) {
           const Tensor x = normal(d, {1000, 7});
           const auto [largest, where] = x.max(0);
           return Tensors{x.sum(),
                          x.sum(1),
                          x.mean(0),
                          x.var(0),
                          x.norm(),
                          x.prod(1),
                          x.amax(),
                          x.argmin(1),
                          largest,
                          where,
                          x.gt(0).any(0),
                          x.logsumexp(0),
                          std::get<0>(x.median(0))};
         }),
    Case("Matrices", {{4, 5}, {5, 3}, {3}},
         [](const Tensors& x) {
           return x[0].mm(x[1]).mv(x[2]) +
                  torch::einsum("ij,jk->i", {x[0], x[1]}) +
                  torch::addmm(x[2], x[0], x[1]).sum(1) +
                  torch::addr(x[0].narrow(1, 0, 3), x[0].select(1, 3), x[2],
                              0.3, 0.7)
                      .sum(1);
         }),
    Case("Cat", {{2, 3}, {4, 3}},
         [](const Tensors& x) {
           return torch::cat({x[0], x[1], x[0]});
         }),
    Case("StackSplitAndChunk", {{6, 4}},
         [](const Tensors& x) {
           const Tensors pieces = x[0].split(2);
           const Tensors halves = x[0].chunk(2, 1);
           return torch::stack({pieces[0], pieces[2]}).sum() * halves[1];
         }),
    Case("Sort",
         [](const Device& d) {
           const auto [sorted, order] = normal(d, {5, 9}).sort(1, true);
           return Tensors{sorted, order, integers(d, 4, {30}).argsort(true, 0)};
         }),
    Case("Unique",
         [](const Device& d) {
           const auto [values, inverse, counts] =
               torch::_unique2(integers(d, 5, {20}), true, true, true);
           return Tensors{values, inverse, counts,
                          torch::bincount(integers(d, 5, {20}))};
         }),
    Case("HalfPrecision",
         [](const Device& d) {
           const Tensor x = normal(d, {5, 6}).to(torch::kBFloat16);
           return Tensors{x + x, x.mm(x.t()), x.softmax(1), x.to(torch::kHalf)};
         }),
    Case("Factories",
         [](const Device& d) {
           return Tensors{torch::arange(5, longs(d)),
                          torch::linspace(0, 1, 7, d),
                          torch::eye(3, d),
                          torch::full({2, 2}, 0.1, d),
                          torch::ones({3}, longs(d)),
                          torch::tril_indices(3, 3, 0, longs(d)),
                          torch::one_hot(torch::arange(3, longs(d)), 4)};
         }),
    Case("ChannelsLast",
         [](const Device& d) {
           const Tensor x = normal(d, {2, 3, 5, 5})
                                .contiguous(at::MemoryFormat::ChannelsLast);
           const Tensor w = normal(d, {4, 3, 3, 3}, 2);
           return Tensors{x, x + 1, x * x, torch::conv2d(x, w),
                          torch::max_pool2d(x, 2)};
         }),
};

const Case kIndexing[] = {
    Case("Mask", {{5, 6}},
         [](const Tensors& x) { return x[0].index({x[0] > 0}); }),
    Case("NonZero",
         [](const Device& d) {
           const Tensor x = normal(d, {5, 6});
           return Tensors{x.gt(0).nonzero(), x.gt(100).nonzero()};
         }),
    Case("Indices",
         [](const Device& d) {
           const Tensor rows = integers(d, 5, {4}),
                        columns = integers(d, 6, {4}, 2);
           return with_grads({normal(d, {5, 6})}, [&](const Tensors& x) {
             return x[0].index({rows, columns}) * x[0].index({rows}).sum() +
                    x[0].index({Slice(), columns}).sum(0);
           });
         }),
    Case("PutAtIndices",
         [](const Device& d) {
           Tensor x = normal(d, {5, 6});
           const Tensor rows = torch::arange(3, longs(d));
           x.index_put_({rows, rows + 1}, normal(d, {3}, 2));
           x.index_put_({rows}, normal(d, {6}, 3), /*accumulate=*/true);
           return Tensors{x};
         }),
    Case("PutAtAMask",
         [](const Device& d) {
           Tensor x = normal(d, {5, 6}), y = x.clone();
           x.index_put_({x > 0}, -1);
           y.index_put_({y.select(1, 0) > 0}, normal(d, {6}, 2));
           return Tensors{x, y, x.masked_fill(x < 0, 3),
                          x.masked_scatter(x < 0, normal(d, {30}, 3))};
         }),
    Case("InPlaceOnViews",
         [](const Device& d) {
           Tensor x = normal(d, {5, 6});
           x.t().mul_(2);
           x.select(0, 1).fill_(7);
           x.slice(1, 0, 6, 2).add_(x.slice(1, 1, 6, 2));
           x.narrow(0, 2, 2).relu_();
           x.view({6, 5}).diagonal().zero_();
           x.index({Slice(3), Slice()}).copy_(normal(d, {2, 6}, 2));
           x[4].unsqueeze(1).sub_(0.5);
           return Tensors{x};
         }),
    Case("Rearranged",
         [](const Device& d) {
           const Tensor x = normal(d, {2, 3, 4});
           return Tensors{x.permute({2, 0, 1}),
                          x.flip(1),
                          x.roll(1, 2),
                          x.repeat({2, 1, 1}),
                          x.repeat_interleave(2, 1),
                          x.reshape({4, 6}),
                          x.transpose(0, 2).reshape({-1}),
                          x.unfold(2, 2, 1),
                          x.movedim(0, 2).contiguous()};
         }),
};

const Case kOutputs[] = {
    Case("OfTheRightSize",
         [](const Device& d) {
           Tensor out = torch::zeros({5, 6}, d);
           torch::add_out(out, normal(d, {5, 6}), normal(d, {5, 6}, 2));
           return Tensors{out};
         }),
    Case("ThatAreEmpty",
         [](const Device& d) {
           const Tensor x = normal(d, {5, 6});
           Tensor sum = torch::empty({0}, d), product = torch::empty({0}, d),
                  larger = torch::empty({0}, d),
                  where = torch::empty({0}, longs(d));
           torch::add_out(sum, x, x);
           torch::mm_out(product, x, x.t());
           torch::max_out(larger, where, x, 1);
           return Tensors{sum, product, larger, where};
         }),
    Case("OfASizeThatDependsOnValues",
         [](const Device& d) {
           const Tensor x = normal(d, {5, 6});
           Tensor out = torch::empty({0}, d),
                  where = torch::empty({0}, longs(d));
           torch::masked_select_out(out, x, x > 0);
           torch::nonzero_out(where, x > 0);
           return Tensors{out, where};
         }),
    Case("ThatTheKernelUsesInBetween",
         [](const Device& d) {
           Tensor out = torch::empty({}, d);
           torch::mse_loss_out(out, normal(d, {5, 6}), normal(d, {5, 6}, 2));
           return Tensors{out};
         }),
    Case("ThatAreViews",
         [](const Device& d) {
           const Tensor all = torch::zeros({5, 8}, d);
           Tensor column = all.select(1, 3), block = all.narrow(1, 4, 3);
           torch::sum_out(column, normal(d, {5, 6}), 1);
           torch::mul_out(block, normal(d, {5, 3}), normal(d, {5, 3}, 2));
           return Tensors{all};
         }),
    Case("OfAnotherType",
         [](const Device& d) {
           Tensor out =
               torch::empty({0}, torch::dtype(torch::kDouble).device(d));
           torch::add_out(out, normal(d, {4}), normal(d, {4}, 2));
           return Tensors{out};
         }),
    Case("ThatShrink",
         [](const Device& d) {
           Tensor x = normal(d, {5, 6});
           x.resize_({2, 3});
           return Tensors{x};
         }),
};

const Case kRandom[] = {
    Case("Normal",
         [](const Device& d) {
           return Tensors{torch::randn({5, 7}, d), torch::randn({3}, d),
                          torch::empty({20}, d).normal_(2, 3),
                          at::normal(normal(d, {4}), 0.5)};
         }),
    Case("Uniform",
         [](const Device& d) {
           return Tensors{torch::rand({5, 7}, d),
                          torch::empty({20}, d).uniform_(-2, 3),
                          torch::rand_like(normal(d, {3}))};
         }),
    Case("Bernoulli",
         [](const Device& d) {
           return Tensors{
               torch::empty({5, 7}, d).bernoulli_(0.3),
               torch::bernoulli(normal(d, {20}).sigmoid()),
               torch::empty({20}, d).bernoulli_(normal(d, {20}).sigmoid())};
         }),
    Case("Dropout", {{5, 7}},
         [](const Tensors& x) {
           return torch::dropout(x[0], 0.4, /*train=*/true);
         }),
    Case("NativeDropout",
         [](const Device& d) {
           const Tensor x = normal(d, {5, 7}).requires_grad_();
           const auto [value, mask] = torch::native_dropout(x, 0.4, true);
           value.pow(2).sum().backward();
           return Tensors{value, mask, x.grad(), torch::rand({3}, d)};
         }),
    Case("NativeDropoutAtItsEnds",
         [](const Device& d) {
           const Tensor x = normal(d, {5, 7});
           Tensors all;
           for (const auto& [p, train] :
                {std::pair(0.0, true), {1.0, true}, {0.4, false}}) {
             const auto [value, mask] = torch::native_dropout(x, p, train);
             all.insert(all.end(), {value, mask});
           }
           all.push_back(torch::rand({3}, d));
           return all;
         }),
    Case("OneAfterTheOther",
         [](const Device& d) {
           Tensors all;
           for (int k = 0; k < 3; ++k) {
             all.push_back(torch::randn({3}, d));
             all.push_back(torch::rand({5}, d));
             all.push_back(torch::dropout(all.back(), 0.5, true));
           }
           return all;
         }),
};

// Wrapped numbers, which have no dtype of their own: 0.1f and 0.1 differ.
const Case kNumbers[] = {
    Case("WithTensorsOfNoDimension",
         [](const Device& d) {
           const Tensor x = normal(d, {}), third = normal(d, {3}).sum();
           return Tensors{x * 0.1,
                          x / 3.0,
                          x + 0.1,
                          0.1 - x,
                          third / 7.0,
                          x.pow(1.1),
                          x.add(third, 0.1),
                          x.lerp(third, 0.1),
                          torch::remainder(x, 0.1),
                          torch::where(x > 100, x, 0.1)};
         }),
    Case("WithIntegers",
         [](const Device& d) {
           const Tensor x = integers(d, 1000, {50});
           return Tensors{x * 0.1,
                          x / 3.0,
                          x + 0.1,
                          0.1 - x,
                          x * 3,
                          torch::floor_divide(x, 2.5),
                          torch::remainder(x, 0.7),
                          torch::pow(x, 0.3),
                          x.div(7, "floor")};
         }),
    Case("ThatAreTensors",
         [](const Device& d) {
           const Tensor number = at::native::wrapped_scalar_tensor(0.1);
           const Tensor typed = torch::tensor(0.1, torch::kDouble);
           const Tensor x = normal(d, {}), y = integers(d, 1000, {50});
           return Tensors{x * number,
                          y * number,
                          x * typed,
                          y * typed,
                          torch::maximum(y, number),
                          torch::atan2(y, number)};
         }),
    Case("InPlace",
         [](const Device& d) {
           return Tensors{normal(d, {}).mul_(0.1), normal(d, {}).div_(3.0),
                          normal(d, {4}).add_(0.1)};
         }),
};

std::string to_string(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Layers, ValueTest, ::testing::ValuesIn(kLayers),
                         to_string);
INSTANTIATE_TEST_SUITE_P(Functions, ValueTest, ::testing::ValuesIn(kFunctions),
                         to_string);
INSTANTIATE_TEST_SUITE_P(Indexing, ValueTest, ::testing::ValuesIn(kIndexing),
                         to_string);
INSTANTIATE_TEST_SUITE_P(Outputs, ValueTest, ::testing::ValuesIn(kOutputs),
                         to_string);
INSTANTIATE_TEST_SUITE_P(Random, ValueTest, ::testing::ValuesIn(kRandom),
                         to_string);
INSTANTIATE_TEST_SUITE_P(Numbers, ValueTest, ::testing::ValuesIn(kNumbers),
                         to_string);

}  // namespace
}  // namespace gpipe::simulated
