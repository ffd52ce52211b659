// Tests layers that change a buffer in place and then let autograd save it: the
// gradients are those of a plain loop over the micro-batches, in which each
// backward comes before the next forward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/normalization.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/gpipe.h"
#include "gpipe/recomputed.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::difference;
using testing::error_of;
using ::testing::HasSubstr;
using testing::mean_square;
using torch::Tensor;
using torch::nn::Sequential;
namespace F = torch::nn::functional;

constexpr int64_t kColumns = 4;

// A norm by a running mean of squares.
struct RunningSquaresImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      squares.mul_(0.9).add_(x.pow(2).mean(0), 0.1);
      calls.add_(1);
    }
    return x * weight / (squares + 0) / squares * calls;
  }
  Tensor weight = register_parameter("weight", torch::linspace(1, 2, kColumns));
  Tensor squares = register_buffer("squares", torch::ones({kColumns}));
  Tensor calls = register_buffer("calls", torch::zeros({}));
};
TORCH_MODULE(RunningSquares);

// A linear layer by its spectral norm, with one step of power iteration.
struct SpectralImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      v.copy_(F::normalize(weight.t().mv(u), F::NormalizeFuncOptions().dim(0)));
      u.copy_(F::normalize(weight.mv(v), F::NormalizeFuncOptions().dim(0)));
    }
    return F::linear(x, weight / u.dot(weight.mv(v)));
  }
  Tensor weight = register_parameter(
      "weight",
      torch::arange(kColumns* kColumns).to(torch::kDouble).view({4, 4}).sin());
  Tensor u = register_buffer("u", torch::ones({kColumns}));
  Tensor v = register_buffer("v", torch::ones({kColumns}));
};
TORCH_MODULE(Spectral);

// Divides by the running variance of a BatchNorm.
struct NormAndMoreImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor y = norm(x);
    return (y + x) / norm->running_var.sqrt() / norm->running_var;
  }
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(kColumns));
};
TORCH_MODULE(NormAndMore);

// BatchNorm with buffers of its own, whose versions the operator does not
// raise.
struct OwnNormImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor y = F::batch_norm(
        x, mean, var, F::BatchNormFuncOptions().training(is_training()));
    return (y + x) / var;
  }
  Tensor mean = register_buffer("mean", torch::zeros({kColumns}));
  Tensor var = register_buffer("var", torch::ones({kColumns}));
};
TORCH_MODULE(OwnNorm);

// Passes buffers that change to BatchNorm, as its weight and as its input.
struct NormOfBuffersImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      scale.mul_(0.5).add_(x.abs().mean(0));
      rows.mul_(0.9).add_(x.reshape({-1, 3, kColumns}).mean(0));
    }
    const Tensor y = F::batch_norm(
        x, {}, {}, F::BatchNormFuncOptions().weight(scale).training(true));
    return y + norm(rows).repeat({x.size(0) / 3, 1});
  }
  Tensor scale = register_buffer("scale", torch::ones({kColumns}));
  Tensor rows = register_buffer("rows", torch::eye(3, kColumns));
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(kColumns));
};
TORCH_MODULE(NormOfBuffers);

template <typename Layer>
Sequential layers_around(const Layer& layer) {
  torch::manual_seed(1);
  Sequential model(torch::nn::Linear(kColumns, kColumns), layer,
                   torch::nn::Linear(kColumns, kColumns),
                   torch::nn::Linear(kColumns, kColumns));
  model->to(torch::kDouble);
  return model;
}

// Returns copies of the gradients and the buffers.
std::vector<Tensor> state_of(const torch::nn::Module& module) {
  std::vector<Tensor> all = testing::grads_of(module);
  for (const Tensor& each : module.buffers()) all.push_back(each.cpu().clone());
  return all;
}

void expect_close(const std::vector<Tensor>& actual,
                  const std::vector<Tensor>& expected) {
  EXPECT_EQ(difference(actual, expected, 1e-12, 1e-12), "");
}

struct Case {
  std::string name;
  std::function<Sequential(bool recomputed)> make;
};

template <typename Layer>
Case case_of(const std::string& name) {
  return {name, [](bool recomputed) {
            return recomputed ? layers_around(Recomputed(Layer()))
                              : layers_around(Layer());
          }};
}

void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

class ChangedBuffersTest : public ::testing::TestWithParam<Case> {
 protected:
  static Tensor rows(int64_t seed) {
    torch::manual_seed(seed);
    return torch::randn({12, kColumns}, torch::kDouble);
  }

  // Returns the gradients and buffers after a plain loop.
  static std::vector<Tensor> expected(int64_t microbatches) {
    Sequential model = GetParam().make(/*recomputed=*/false);
    model->to(testing::reference_device());
    const auto inputs = rows(2).chunk(microbatches);
    const auto targets = rows(3).chunk(microbatches);
    for (int64_t k = 0; k < microbatches; ++k) {
      const Tensor x = inputs[k].to(testing::reference_device());
      const Tensor y = targets[k].to(testing::reference_device());
      (mean_square(model->forward(x), y) / static_cast<double>(microbatches))
          .backward();
    }
    return state_of(*model);
  }
};

TEST_P(ChangedBuffersTest, ForwardAndBackwardHaveTheGradientsOfAPlainLoop) {
  for (const int64_t microbatches : {1, 2, 4}) {
    for (const auto& balance :
         std::vector<std::vector<int64_t>>{{4}, {2, 2}, {1, 1, 1, 1}}) {
      for (const auto mode : {Checkpoint::kAlways, Checkpoint::kExceptLast}) {
        SCOPED_TRACE(c10::str(microbatches, " micro-batches, ", balance.size(),
                              " partitions, ", to_string(mode)));
        GPipe pipeline(GetParam().make(/*recomputed=*/false),
                       testing::options(balance, microbatches, mode));
        const Tensor output = pipeline->forward(rows(2).to(device()));
        mean_square(output, rows(3).to(output.device())).backward();
        expect_close(state_of(*pipeline), expected(microbatches));
      }
    }
  }
}

TEST_P(ChangedBuffersTest, EveryScheduleHasTheGradientsOfAPlainLoop) {
  constexpr int kRanks = 2;
  for (const int microbatches : {2, 4}) {
    for (const Schedule& schedule :
         {fill_drain(kRanks, microbatches),
          one_forward_one_backward(kRanks, microbatches),
          zero_bubble_h1(kRanks, microbatches),
          with_offload(fill_drain(kRanks, microbatches),
                       [](int, int) { return true; })}) {
      SCOPED_TRACE(to_csv(schedule));
      GPipe pipeline(
          GetParam().make(/*recomputed=*/false),
          testing::options({2, 2}, microbatches, Checkpoint::kAlways));
      pipeline->train_step(rows(2).to(device()), rows(3), mean_square,
                           schedule);
      expect_close(state_of(*pipeline), expected(microbatches));
    }
  }
}

TEST_P(ChangedBuffersTest, RecomputedLayersHaveTheGradientsOfAPlainLoop) {
  for (const int64_t microbatches : {1, 2, 4}) {
    for (const auto mode : testing::kModes) {
      SCOPED_TRACE(c10::str(microbatches, " micro-batches, ", to_string(mode)));
      GPipe pipeline(GetParam().make(/*recomputed=*/true),
                     testing::options({2, 2}, microbatches, mode));
      const Tensor output = pipeline->forward(rows(2).to(device()));
      mean_square(output, rows(3).to(output.device())).backward();
      expect_close(state_of(*pipeline), expected(microbatches));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layers, ChangedBuffersTest,
    ::testing::Values(case_of<RunningSquares>("RunningSquares"),
                      case_of<Spectral>("Spectral"),
                      case_of<NormAndMore>("NormAndMore"),
                      case_of<OwnNorm>("OwnNorm"),
                      case_of<NormOfBuffers>("NormOfBuffers")),
    [](const auto& info) { return info.param.name; });

// A layer that `change` changes in each forward, before it uses its buffer.
struct ChangingImpl : torch::nn::Module {
  using Change = std::function<void(Tensor& buffer, const Tensor& x)>;
  explicit ChangingImpl(Change change) : change(std::move(change)) {}
  Tensor forward(const Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      change(buffer, x);
    }
    return x * buffer.clone();
  }
  const Change change;
  Tensor buffer = register_buffer("buffer", torch::ones({kColumns}));
};
TORCH_MODULE(Changing);

// LibTorch does not count such a change.
TEST(ChangedBufferTest, ThroughDataEqualsInPlaceOnTheCpu) {
  if (!device().is_cpu()) GTEST_SKIP() << "found on the CPU only";
  torch::manual_seed(2);
  const Tensor x = torch::randn({8, kColumns}, torch::kDouble);
  const auto after = [&](const ChangingImpl::Change& change, Checkpoint mode,
                         bool recomputed) {
    const Changing layer(change);
    Sequential model =
        recomputed ? layers_around(Recomputed(layer)) : layers_around(layer);
    GPipe pipeline(model, testing::options({2, 2}, 2, mode));
    pipeline->forward(x).sum().backward();
    return state_of(*pipeline);
  };
  const auto expected =
      after([](Tensor& buffer, const Tensor& x) { buffer.add_(x.mean(0)); },
            Checkpoint::kNever, false);
  for (const Checkpoint mode : testing::kModes) {
    for (const bool recomputed : {false, true}) {
      const auto actual =
          after([](Tensor& buffer,
                   const Tensor& x) { buffer.data().add_(x.mean(0)); },
                mode, recomputed);
      EXPECT_EQ(difference(actual, expected), "") << to_string(mode);
    }
  }
}

// Changes through data(), by numbers of calls: 1 -1 1 -1 and 0 0 2 2 4 4. The
// first has its earlier value again in every second call, and every second call
// writes what the buffer has already.
struct AgainImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    sign.data().mul_(-1);
    calls.data().add_(1);
    pairs.data().copy_(calls - calls.fmod(2));
    return x * weight * sign.item<double>() + pairs.item<double>();
  }
  Tensor weight = register_parameter("weight", torch::ones({}, torch::kDouble));
  Tensor sign = register_buffer("sign", torch::ones({}, torch::kDouble));
  Tensor calls = register_buffer("calls", torch::zeros({}, torch::kDouble));
  Tensor pairs = register_buffer("pairs", torch::zeros({}, torch::kDouble));
};
TORCH_MODULE(Again);

struct RegistersImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (!scale.defined()) return x * weight;
    {
      const torch::NoGradGuard no_grad;
      scale.mul_(0.5);
    }
    return x * weight * scale;
  }
  Tensor weight = register_parameter("weight", torch::ones({1}));
  Tensor scale;
};
TORCH_MODULE(Registers);

TEST(ChangedBufferTest, ThatIsRegisteredBetweenTwoStepsIsRestored) {
  Registers layer;
  GPipe pipeline(Sequential(layer),
                 testing::options({1}, 2, Checkpoint::kAlways));
  const Tensor x = torch::ones({2, 1}).to(device());
  pipeline->forward(x).sum().backward();
  layer->scale = layer->register_buffer("scale", torch::ones({1}).to(device()));
  pipeline->zero_grad();
  pipeline->forward(x).sum().backward();
  EXPECT_EQ(layer->weight.grad().item<double>(), 0.5 + 0.25);
}

TEST(ChangedBufferTest, ThatHaveAnEarlierValueAgainAreRestored) {
  if (!device().is_cpu()) GTEST_SKIP() << "found on the CPU only";
  for (const Checkpoint mode : testing::kModes) {
    SCOPED_TRACE(to_string(mode));
    const Again layer;
    GPipe pipeline(Sequential(layer), testing::options({1}, 4, mode));
    const Tensor x = torch::arange(4, torch::kDouble).view({4, 1});
    for (int step = 1; step <= 2; ++step) {
      pipeline->forward(x).sum().backward();
      EXPECT_EQ(layer->weight.grad().item<double>(), 2 * step);
      EXPECT_EQ(layer->sign.item<double>(), 1);
      EXPECT_EQ(layer->calls.item<double>(), 4 * step);
      EXPECT_EQ(layer->pairs.item<double>(), 4 * step);
    }
  }
}

Tensor two_micro_batches(Sequential model, Checkpoint mode) {
  GPipe pipeline(model, testing::options({2, 2}, 2, mode));
  torch::manual_seed(2);
  const Tensor x = torch::randn({8, kColumns}, torch::kDouble).to(device());
  return pipeline->forward(x).sum();
}

TEST(ChangedBufferTest, WithoutRecomputeIsTheErrorOfThePlainModel) {
  const Tensor loss =
      two_micro_batches(layers_around(RunningSquares()), Checkpoint::kNever);
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST(ChangedBufferTest, ThatChangesAfterItWasSavedIsAnErrorInARecomputeToo) {
  struct LateImpl : RunningSquaresImpl {
    Tensor forward(const Tensor& x) {
      const Tensor y = RunningSquaresImpl::forward(x);
      const torch::NoGradGuard no_grad;
      squares.add_(1);
      return y;
    }
  };
  using Late = torch::nn::ModuleHolder<LateImpl>;
  Tensor loss = two_micro_batches(
      layers_around(Late(std::make_shared<LateImpl>())), Checkpoint::kAlways);
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              HasSubstr("has been changed in place"));
  loss = two_micro_batches(
      layers_around(Recomputed(Late(std::make_shared<LateImpl>()))),
      Checkpoint::kNever);
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              HasSubstr("has been changed in place"));
}

// Statistics that no module of the pipeline has as buffers count once.
TEST(ChangedBufferTest, CapturedStatisticsChangeInTheForwardOnly) {
  struct State {
    torch::nn::BatchNorm1d norm{kColumns};
    Tensor mean = torch::zeros({kColumns}, torch::kDouble);
    Tensor var = torch::ones({kColumns}, torch::kDouble);
  };
  const auto state_after = [](bool recomputed, const auto& run) {
    State state;
    state.norm->to(device(), torch::kDouble);
    state.mean = state.mean.to(device());
    state.var = state.var.to(device());
    const auto function = testing::layer([=](const Tensor& x) {
      auto norm = state.norm;
      return norm(F::batch_norm(x, state.mean, state.var,
                                F::BatchNormFuncOptions().training(true)));
    });
    Sequential model;
    model->push_back(function);
    run(model, recomputed);
    return std::vector<Tensor>{state.mean, state.var, state.norm->running_mean,
                               state.norm->running_var,
                               state.norm->num_batches_tracked};
  };
  torch::manual_seed(2);
  const Tensor x =
      torch::randn({8, kColumns}, torch::kDouble).to(device()).requires_grad_();
  const auto expected = state_after(false, [&](Sequential& model, bool) {
    for (const Tensor& each : x.chunk(2)) model->forward(each);
  });
  for (const bool recomputed : {false, true}) {
    const auto run = [&](Sequential& model, bool recomputed) {
      Sequential layers(recomputed ? Sequential(Recomputed(model)) : model);
      const auto mode = recomputed ? Checkpoint::kNever : Checkpoint::kAlways;
      GPipe pipeline(layers, testing::options({1}, 2, mode));
      pipeline->forward(x).sum().backward();
    };
    const auto actual = state_after(recomputed, run);
    EXPECT_EQ(difference(actual, expected), "") << recomputed;
  }
}

// Has the factor that the layer around it computes.
struct FactorImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x.pow(2) * factor.sin(); }
  Tensor factor = register_buffer("factor", torch::ones({kColumns}));
};
TORCH_MODULE(Factor);

struct AroundFactorImpl : torch::nn::Module {
  explicit AroundFactorImpl(bool recomputed) : recomputed(recomputed) {}
  Tensor forward(const Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      inner->factor.mul_(0.5).add_(x.abs().mean(0));
    }
    return recomputed ? checkpoint(inner, x) : inner(x);
  }
  const bool recomputed;
  Factor inner = register_module("inner", Factor());
};
TORCH_MODULE(AroundFactor);

struct InnerPipelineImpl : torch::nn::Module {
  InnerPipelineImpl(const Sequential& model, Checkpoint mode)
      : pipeline(register_module(
            "pipeline", GPipe(model, testing::options({2, 2}, 1, mode)
                                         .devices(std::vector<torch::Device>(
                                             2, device()))))) {}
  Tensor forward(const Tensor& x) { return pipeline->forward(x); }
  GPipe pipeline;
};
TORCH_MODULE(InnerPipeline);

// Returns the gradients after two micro-batches, by a plain loop without
// `mode`.
std::vector<Tensor> gradients_of(Sequential model,
                                 std::optional<Checkpoint> mode) {
  torch::manual_seed(2);
  const Tensor x = torch::randn({8, kColumns}, torch::kDouble);
  if (mode) {
    const auto layers = static_cast<int64_t>(model->size());
    GPipe pipeline(model, testing::options({layers}, 2, *mode));
    pipeline->forward(x.to(device())).pow(2).sum().backward();
  } else {
    model->to(device());
    for (const Tensor& rows : x.to(device()).chunk(2)) {
      model->forward(rows).pow(2).sum().backward();
    }
  }
  return state_of(*model);
}

// The end of the recompute of the cell gives the buffer its value of now,
// before the function inside is called again.
TEST(ChangedBufferTest, ThatAFunctionInARecomputeReadsHasItsValueThere) {
  expect_close(
      gradients_of(layers_around(AroundFactor(true)), Checkpoint::kAlways),
      gradients_of(layers_around(AroundFactor(false)), std::nullopt));
}

TEST(ChangedBufferTest, OfAPipelineInARecomputeHasItsValueThere) {
  for (const Checkpoint inner : testing::kModes) {
    expect_close(gradients_of(Sequential(InnerPipeline(
                                  layers_around(RunningSquares()), inner)),
                              Checkpoint::kAlways),
                 gradients_of(layers_around(RunningSquares()), std::nullopt));
  }
}

// Returns the buffers of an inner pipeline that a layer calls, and its
// gradients, after a step of the pipeline of that layer.
std::vector<Tensor> state_after_step(Sequential inner, bool is_deferred,
                                     Checkpoint inner_mode, Checkpoint mode) {
  torch::manual_seed(2);
  GPipe unregistered(inner,
                     testing::options({1, 1, 1}, 2, inner_mode)
                         .devices(std::vector<torch::Device>(3, device()))
                         .deferred_batch_norm(is_deferred));
  const auto call = [&](const Tensor& x) { return unregistered->forward(x); };
  GPipe pipeline(Sequential(torch::nn::Functional(call), Factor()),
                 testing::options({2}, 2, mode));
  pipeline->to(torch::kDouble);
  const Tensor x = torch::randn({8, kColumns}, torch::kDouble).to(device());
  pipeline->forward(x).pow(2).sum().backward();
  return state_of(*inner);
}

// No module of the layer that is computed again has them.
TEST(ChangedBufferTest, OfNormsInAnUnregisteredPipelineChangeOnce) {
  const auto layers = [] {
    torch::manual_seed(3);
    torch::nn::BatchNormOptions average(kColumns);
    average.momentum(std::nullopt);
    Sequential inner(torch::nn::BatchNorm1d(kColumns),
                     torch::nn::Linear(kColumns, kColumns),
                     torch::nn::BatchNorm1d(average));
    inner->to(torch::kDouble);
    return inner;
  };
  for (const bool is_deferred : {false, true}) {
    for (const Checkpoint inner_mode : testing::kModes) {
      expect_close(state_after_step(layers(), is_deferred, inner_mode,
                                    Checkpoint::kAlways),
                   state_after_step(layers(), is_deferred, inner_mode,
                                    Checkpoint::kNever));
    }
  }
}

struct GiveStateImpl : torch::nn::Module {
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    const torch::NoGradGuard no_grad;
    state.copy_(x);
    return {x, state};
  }
  Tensor state =
      register_buffer("state", torch::zeros({2, kColumns}, torch::kDouble));
};
TORCH_MODULE(GiveState);

// The next micro-batch changes it while other partitions read it.
TEST(ChangedBufferTest, ThatALayerReturnsHasItsValueInOtherPartitions) {
  torch::manual_seed(2);
  const Tensor x = torch::randn({16, kColumns}, torch::kDouble).to(device());
  for (const auto& balance : std::vector<std::vector<int64_t>>{{2}, {1, 1}}) {
    for (const Checkpoint mode : testing::kModes) {
      GPipe pipeline(Sequential(GiveState(), testing::AddMask()),
                     testing::options(balance, 8, mode));
      for (int step = 0; step < 2; ++step) {
        const auto [sum, state] =
            pipeline->forward<std::tuple<Tensor, Tensor>>(x);
        EXPECT_TRUE(sum.to(x.device()).allclose(x * 3));
        EXPECT_TRUE(state.to(x.device()).equal(x));
      }
    }
  }
}

TEST(ChangedBufferTest, ThatTheLastLayerReturnsHasItsValueInKeptOutputs) {
  using Both = std::tuple<Tensor, Tensor>;
  GPipe pipeline(Sequential(GiveState()), testing::options({1}, 4));
  const Tensor x = torch::rand({8, kColumns}, torch::kDouble).to(device());
  const auto result = pipeline->evaluate<Both>(
      x, x, [](const Both& y, const Tensor&) { return std::get<0>(y).sum(); },
      TrainOptions().outputs(true));
  EXPECT_TRUE(std::get<1>(result.output<Both>()).equal(x));
}

// The largest row so far. Most calls leave the buffer as it is.
struct PeakImpl : torch::nn::Module {
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    const torch::NoGradGuard no_grad;
    const Tensor largest = x.amax(0, /*keepdim=*/true);
    if ((largest > peak).any().item<bool>()) peak.data().copy_(largest);
    return {x, peak};
  }
  Tensor peak = register_buffer("peak", torch::zeros({1, 1}, torch::kDouble));
};
TORCH_MODULE(Peak);

TEST(ChangedBufferTest, ThatChangesInALaterCallHasItsValueInTheOutput) {
  GPipe pipeline(Sequential(Peak()), testing::options({1}, 4));
  const Tensor x = torch::tensor({1.0, 0.0, 2.0, 1.0}, torch::kDouble);
  const auto [same, peaks] = pipeline->forward<std::tuple<Tensor, Tensor>>(
      x.view({4, 1}).to(device()));
  EXPECT_TRUE(peaks.cpu().flatten().equal(
      torch::tensor({1.0, 1.0, 2.0, 2.0}, torch::kDouble)));
}

// Two workers would change it in no order.
TEST(ChangedBufferTest, ThatTwoPartitionsHaveIsAnError) {
  struct UseImpl : torch::nn::Module {
    explicit UseImpl(const RunningSquares& norm)
        : norm(register_module("norm", norm)) {}
    Tensor forward(const Tensor& x) {
      return is_training() ? norm(x) : x * norm->squares;
    }
    RunningSquares norm;
  };
  using Use = torch::nn::ModuleHolder<UseImpl>;
  for (const Checkpoint mode : testing::kModes) {
    RunningSquares norm;
    Sequential model((Use(norm)), (Use(norm)));
    model->to(torch::kDouble);
    const std::vector<torch::Device> here(2, device());
    GPipe pipeline(model, testing::options({1, 1}, 2, mode).devices(here));
    const Tensor x = torch::ones({4, kColumns}, torch::kDouble).to(device());
    EXPECT_THAT(error_of([&] { pipeline->forward(x); }),
                HasSubstr("norm.squares' of partition 0 has been changed in a "
                          "forward, but a layer of another partition has it"));
    pipeline->eval();
    EXPECT_EQ(pipeline->forward(x).sizes(), x.sizes());
  }
}

// BatchNorm's operator changes its statistics without a new version.
TEST(ChangedBufferTest, ThatTwoPartitionsHaveAsStatisticsIsAnError) {
  struct UseImpl : torch::nn::Module {
    explicit UseImpl(const Tensor& mean, const Tensor& var)
        : mean(register_buffer("mean", mean)),
          var(register_buffer("var", var)) {}
    Tensor forward(const Tensor& x) {
      return torch::nn::functional::batch_norm(
          x, mean, var,
          torch::nn::functional::BatchNormFuncOptions().training(true));
    }
    Tensor mean, var;
  };
  const auto numbers = at::TensorOptions(torch::kDouble).device(device());
  const Tensor mean = torch::zeros({kColumns}, numbers);
  const Tensor var = torch::ones({kColumns}, numbers);
  GPipe pipeline(Sequential(std::make_shared<UseImpl>(mean, var),
                            std::make_shared<UseImpl>(mean, var)),
                 testing::options({1, 1}, 2, Checkpoint::kNever)
                     .devices(std::vector<torch::Device>(2, device())));
  EXPECT_THAT(
      error_of([&] {
        pipeline->forward(torch::ones({4, kColumns}, numbers));
      }),
      HasSubstr("mean' of partition 0 has been changed in a forward, but a "
                "layer of another partition has it"));
}

// Two workers would restore it in no order.
TEST(ChangedBufferTest, ThatTwoPartitionsHaveIsAnErrorOfTheBackward) {
  struct UseImpl : torch::nn::Module {
    explicit UseImpl(const Tensor& factor)
        : factor(register_buffer("factor", factor)) {}
    Tensor forward(const Tensor& x) { return x * factor; }
    Tensor factor;
  };
  const auto numbers = at::TensorOptions(torch::kDouble).device(device());
  const Tensor factor = torch::ones({1}, numbers);
  GPipe pipeline(Sequential(std::make_shared<UseImpl>(factor),
                            std::make_shared<UseImpl>(factor)),
                 testing::options({1, 1}, 2, Checkpoint::kAlways)
                     .devices(std::vector<torch::Device>(2, device())));
  const Tensor x = torch::ones({4, kColumns}, numbers).requires_grad_();
  const Tensor y = pipeline->forward(x);
  factor.fill_(2);
  EXPECT_THAT(error_of([&] { y.sum().backward(); }),
              HasSubstr("has been changed between forward and backward, but "
                        "a layer of another partition has it"));
  EXPECT_EQ(factor.item<double>(), 2);
}

// checkpoint() does not know the module whose buffer the function changes.
TEST(ChangedBufferTest, ThatACheckpointedFunctionCapturesIsAnError) {
  struct InsideImpl : RunningSquaresImpl {
    Tensor forward(const Tensor& x) {
      return checkpoint(
          [this](const Tensor& y) { return RunningSquaresImpl::forward(y); },
          x);
    }
  };
  using Inside = torch::nn::ModuleHolder<InsideImpl>;
  const Tensor loss =
      two_micro_batches(layers_around(Inside(std::make_shared<InsideImpl>())),
                        Checkpoint::kNever);
  EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("Recomputed"));
}

}  // namespace
}  // namespace gpipe
