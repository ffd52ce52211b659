// Tests the casts of parameters under autocast: how many there are, and that
// the gradients have the bits of plain LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "training/autocast.h"

namespace gpipe {
namespace {

using instruments::CountingAllocator;
using torch::Tensor;
namespace nn = torch::nn;

GPipe pipeline_of(const nn::Sequential& model,
                  const std::vector<int64_t>& balance, int chunks,
                  Checkpoint mode = Checkpoint::kNever) {
  return GPipe(model, GPipeOptions(balance)
                          .devices(std::vector<torch::Device>(balance.size(),
                                                              torch::kCPU))
                          .chunks(chunks)
                          .checkpoint(mode)
                          .threads_per_partition(1));
}

// --- Memory ------------------------------------------------------------------

class CastBytes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { CountingAllocator::install(); }
};

constexpr int64_t kFeatures = 256, kLayers = 4, kSamples = 16;
constexpr int64_t kBytesOfCast = kFeatures * kFeatures * 2;

// Returns the bytes that the graphs of all micro-batches hold after a forward.
int64_t held(const nn::Sequential& model, int chunks) {
  GPipe pipeline = pipeline_of(model, {kLayers}, chunks);
  const Tensor x = torch::randn({kSamples, kFeatures});
  const int64_t before = CountingAllocator::live_bytes();
  const AutocastScope autocast(at::kCPU, at::kBFloat16);
  const Tensor output = pipeline->forward(x);
  return CountingAllocator::live_bytes() - before -
         static_cast<int64_t>(output.nbytes());
}

nn::Sequential linear_layers() {
  nn::Sequential model;
  for (int64_t k = 0; k < kLayers; ++k) {
    model->push_back(nn::Linear(kFeatures, kFeatures));
  }
  return model;
}

// Expects the copies of all weights but the first one, which is needed for no
// gradient, and the inputs of `layers` layers. The activations of all
// micro-batches have the same size together, so that a copy per micro-batch
// would be seen.
void expect_held(const nn::Sequential& model, int64_t layers) {
  const int64_t copies = (kLayers - 1) * kBytesOfCast;
  const int64_t inputs = layers * kSamples * kFeatures * 2;
  for (const int chunks : {1, 4, 16}) {
    EXPECT_EQ(held(model, chunks), copies + inputs) << chunks;
  }
}

TEST_F(CastBytes, OfAWeightAreOneForAllMicrobatchesInFlight) {
  expect_held(linear_layers(), kLayers);  // each layer keeps its input
}

TEST_F(CastBytes, OfAFrozenWeightAreOneAsWell) {
  const nn::Sequential model = linear_layers();
  for (Tensor each : model->children().back()->parameters()) {
    each.requires_grad_(false);
  }
  expect_held(model, kLayers - 1);
}

TEST_F(CastBytes, AreFreedWithTheGraphs) {
  nn::Sequential model(nn::Linear(kFeatures, kFeatures),
                       nn::Linear(kFeatures, kFeatures));
  GPipe pipeline = pipeline_of(model, {2}, 4);
  const Tensor x = torch::randn({kSamples, kFeatures});
  const int64_t before = CountingAllocator::live_bytes();
  for (int k = 0; k < 2; ++k) {
    {
      const AutocastScope autocast(at::kCPU, at::kBFloat16);
      pipeline->forward(x);
    }
    EXPECT_EQ(CountingAllocator::live_bytes(), before);
  }
}

// --- Values ------------------------------------------------------------------

// A layer that uses one weight as it is, transposed, and in part.
struct UsesImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor y = nn::functional::linear(x, weight) + x.mm(weight.t());
    return y + x.mm(weight) +
           x.narrow(1, 0, 4).mm(weight.narrow(0, 0, 4)) * 0.5;
  }
  Tensor weight = register_parameter("weight", torch::randn({8, 8}));
};
TORCH_MODULE(Uses);

nn::Sequential model() {
  torch::manual_seed(2);
  nn::Sequential model(nn::Conv1d(1, 2, 3), nn::Flatten(), nn::Linear(8, 8),
                       Uses(), nn::Tanh(), nn::Linear(8, 8), Uses(),
                       nn::Linear(8, 4));
  for (Tensor each : model->children()[5]->parameters()) {
    each.requires_grad_(false);
  }
  return model;
}

Tensor loss(const Tensor& output, const Tensor& target) {
  return (output.to(torch::kFloat) - target).pow(2).mean();
}

// Returns the sums of the gradients of the micro-batches, each with an autocast
// scope and a backward of its own, from the first to the last or back. A frozen
// parameter has none.
std::vector<Tensor> plain_grads(nn::Sequential& model, const Tensor& input,
                                const Tensor& target, int chunks,
                                bool last_first) {
  std::vector<Tensor> sums(model->parameters().size());
  const auto inputs = input.chunk(chunks), targets = target.chunk(chunks);
  for (int turn = 0; turn < chunks; ++turn) {
    const int i = last_first ? chunks - 1 - turn : turn;
    Tensor piece;
    {
      const AutocastScope autocast(at::kCPU, at::kBFloat16);
      piece = loss(model->forward(inputs[i]), targets[i]);
    }
    model->zero_grad();
    (piece * (1.0 / chunks)).backward();
    for (std::size_t k = 0; k < sums.size(); ++k) {
      const Tensor grad = model->parameters()[k].grad();
      if (!grad.defined()) continue;
      sums[k] = sums[k].defined() ? sums[k] + grad : grad.clone();
    }
  }
  return sums;
}

void expect_grads(const nn::Module& module, const std::vector<Tensor>& grads,
                  const std::string& what) {
  const auto parameters = module.named_parameters();
  for (std::size_t k = 0; k < grads.size(); ++k) {
    const Tensor grad = parameters[k].value().grad();
    ASSERT_EQ(grad.defined(), grads[k].defined()) << what;
    if (!grad.defined()) continue;
    EXPECT_EQ(grad.scalar_type(), torch::kFloat);
    EXPECT_TRUE(grad.equal(grads[k])) << what << ", " << parameters[k].key();
  }
}

// Expects the bits of the plain gradients in the steps of a pipeline of two
// partitions, whose caller is in a scope of autocast until the end.
void expect_plain_bits(const std::function<nn::Sequential()>& make,
                       const std::vector<int64_t>& balance,
                       const Tensor& input) {
  const Tensor target = torch::randn({8, 4});
  nn::Sequential plain = make();
  for (const std::string name : {"fill-drain", "1f1b", "zb-h1"}) {
    const auto grads =
        plain_grads(plain, input, target, 4, name == "fill-drain");
    for (const Checkpoint mode :
         {Checkpoint::kNever, Checkpoint::kAlways, Checkpoint::kExceptLast}) {
      GPipe pipeline = pipeline_of(make(), balance, 4, mode);
      for (int step = 0; step < 2; ++step) {
        const AutocastScope autocast(at::kCPU, at::kBFloat16);
        pipeline->zero_grad();
        pipeline->train_step(input, target, loss,
                             named_schedule(name, 2, 4, /*stages_per_rank=*/1));
      }
      expect_grads(*pipeline, grads, name);
    }
  }
}

TEST(Casts, GiveTheBitsOfPlainAutocastInEverySchedule) {
  torch::manual_seed(5);
  expect_plain_bits(model, {3, 5}, torch::randn({8, 1, 6}));
}

TEST(Casts, GiveTheBitsOfPlainAutocastInForwardAndBackward) {
  torch::manual_seed(5);
  const Tensor input = torch::randn({8, 1, 6}), target = torch::randn({8, 4});
  nn::Sequential plain = model();
  const auto grads = plain_grads(plain, input, target, 4, /*last_first=*/true);
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    GPipe pipeline = pipeline_of(model(), {3, 5}, 4, mode);
    Tensor sum;
    {
      const AutocastScope autocast(at::kCPU, at::kBFloat16);
      const Tensor output = pipeline->forward(input);
      const auto outputs = output.chunk(4), targets = target.chunk(4);
      for (int i = 0; i < 4; ++i) {
        const Tensor piece = loss(outputs[i], targets[i]) * 0.25;
        sum = sum.defined() ? sum + piece : piece;
      }
    }
    sum.backward();
    expect_grads(*pipeline, grads, "forward and backward");
  }
}

struct InFloatImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    const AutocastScope off(at::kCPU, at::kBFloat16, /*enabled=*/false);
    return linear(x.to(torch::kFloat));
  }
  nn::Linear linear = register_module("linear", nn::Linear(8, 8));
};
TORCH_MODULE(InFloat);

// A layer in float32 is differentiated in float32, also in a step whose caller
// is in a scope of autocast until the end.
TEST(Casts, DoNotReachTheBackwardOfALayerWithoutAutocast) {
  const auto model = [] {
    torch::manual_seed(3);
    return nn::Sequential{nn::Linear(6, 8), InFloat(), nn::Linear(8, 4)};
  };
  torch::manual_seed(5);
  expect_plain_bits(model, {1, 2}, torch::randn({8, 6}));
}

// The first graph holds the old copy while the second forward runs.
TEST(Casts, AreOfTheValuesOfNow) {
  GPipe pipeline = pipeline_of(nn::Sequential(nn::Linear(4, 4)), {1}, 2);
  const Tensor x = torch::randn({4, 4}).requires_grad_();
  const AutocastScope autocast(at::kCPU, at::kBFloat16);
  for (const bool counted : {true, false}) {
    const Tensor first = pipeline->forward(x);
    {
      const torch::NoGradGuard no_grad;
      for (Tensor each : pipeline->parameters()) {
        // The version of `each` does not tell of a change of its data().
        (counted ? each : each.data()).mul_(2);
      }
    }
    const Tensor second = pipeline->forward(x);
    EXPECT_TRUE(second.equal(first * 2)) << counted;
  }
}

// Returns another reading of the memory of `weight`, with its sizes and
// strides.
Tensor halves_of(const Tensor& weight) {
  return weight.detach().view({16}).view(at::kHalf).narrow(0, 0, 16).view(
      {4, 4});
}

// Multiplies by views of a weight that are the same but for their values.
struct ViewsImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    return torch::cat(
        {x.mm(torch::imag(complex)), x.mm(torch::imag(complex.conj())),
         x.mm(weight), x.mm(halves_of(weight))},
        1);
  }
  Tensor complex = register_parameter(
      "complex", torch::complex(torch::zeros({4, 4}), torch::eye(4)));
  Tensor weight = register_parameter("weight", torch::eye(4));
};
TORCH_MODULE(Views);

// LibTorch negates the imaginary part of a conjugate when it is read.
TEST(Casts, TellViewsOfOneMemoryApart) {
  const Views layer;
  GPipe pipeline = pipeline_of(nn::Sequential(layer), {1}, 2);
  const Tensor x = torch::arange(16, torch::kFloat).view({4, 4});
  const Tensor expected = torch::cat(
      {x, -x, x, x.mm(halves_of(layer->weight).to(torch::kFloat))}, 1);
  const AutocastScope autocast(at::kCPU, at::kBFloat16);
  EXPECT_TRUE(pipeline->forward(x).equal(expected.to(at::kBFloat16)));
}

// Changes its own cast of its weight in place.
struct ChangesImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    const AutocastScope off(at::kCPU, at::kBFloat16, /*enabled=*/false);
    return x.to(at::kBFloat16).mm(weight.to(at::kBFloat16).mul_(2));
  }
  Tensor weight = register_parameter("weight", torch::eye(4));
};
TORCH_MODULE(Changes);

TEST(Casts, ThatALayerChangesAreNotGivenToOthers) {
  GPipe pipeline = pipeline_of(nn::Sequential(Changes()), {1}, 4);
  const Tensor x = torch::arange(16, torch::kFloat).view({4, 4});
  Tensor output;
  {
    const AutocastScope autocast(at::kCPU, at::kBFloat16);
    output = pipeline->forward(x);
  }
  EXPECT_TRUE(output.equal((x * 2).to(at::kBFloat16)));
  output.sum().backward();
  const Tensor grad = pipeline->parameters()[0].grad();
  EXPECT_TRUE(grad.equal(x.sum(0).mul(2).view({4, 1}).expand({4, 4})));
}

}  // namespace
}  // namespace gpipe
