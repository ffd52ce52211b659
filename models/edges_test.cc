// Counts, on simulated accelerators, the bytes that are copied between devices
// when a model runs in a pipeline. They must equal those of gpipe::summary().
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/summary.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/simulated/simulated.h"
#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/testing/figures.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::models {
namespace {

using testing::kMiB;
using torch::Tensor;
using torch::nn::Sequential;

// Bytes by source and destination device.
using Bytes = std::map<std::pair<int64_t, int64_t>, int64_t>;

struct Case {
  std::string name;
  Sequential (*model)();
  Tensor (*input)();
  std::vector<int64_t> balance;
  // MiB per sample from the layout of torchgpipe's model, which is `scale`
  // times as wide; 0 if unknown.
  double boundary = 0, skips = 0;
  double scale = 1;
};

void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

// Returns the bytes copied since the last call. Expects no copy to or from the
// host.
Bytes copied_since() {
  simulated::synchronize();
  Bytes bytes;
  for (const simulated::Given& each : simulated::take_trace()) {
    EXPECT_EQ(each.name.find("host"), std::string::npos) << each.name;
    if (!each.other) continue;
    bytes[{each.stream.device_index(), each.other->device_index()}] +=
        each.bytes;
  }
  return bytes;
}

Bytes reversed(const Bytes& bytes) {
  Bytes result;
  for (const auto& [devices, count] : bytes) {
    result[{devices.second, devices.first}] = count;
  }
  return result;
}

class Edges : public ::testing::TestWithParam<Case> {};

TEST_P(Edges, CarryWhatTheSummarySaysThereAndBack) {
  const Case& test = GetParam();
  torch::manual_seed(0);
  GPipe pipeline(test.model(),
                 gpipe::testing::options(test.balance, 1, Checkpoint::kNever));
  const Tensor input = test.input().to(pipeline->devices().front());

  Bytes expected;
  double boundary = 0, skips = 0;
  for (const auto& each : summary(pipeline, input).crossings) {
    const auto from = pipeline->devices()[each.from].index();
    const auto to = pipeline->devices()[each.to].index();
    ASSERT_NE(from, to);  // otherwise the copy would not be counted
    expected[{from, to}] += *each.bytes;
    (each.skip ? skips : boundary) += static_cast<double>(*each.bytes);
  }
  if (test.boundary > 0) {
    EXPECT_EQ(boundary * test.scale / kMiB, test.boundary);
    EXPECT_EQ(skips * test.scale / kMiB, test.skips);
  }

  simulated::synchronize();
  simulated::take_trace();
  const Tensor output = pipeline->forward(input);
  EXPECT_EQ(copied_since(), expected);
  // A gradient is as large as its tensor.
  const Tensor loss = output.sum();
  simulated::take_trace();
  loss.backward();
  EXPECT_EQ(copied_since(), reversed(expected));
}

template <int64_t side>
Tensor image() {
  return torch::rand({1, 3, side, side});
}

template <int64_t num_convs>
Case unet_case(const char* name, std::vector<int64_t> balance, double boundary,
               double skips, double scale) {
  return {name,       [] { return unet(5, num_convs, 2); },
          image<192>, std::move(balance),
          boundary,   skips,
          scale};
}

Case resnet_case(const char* name, std::vector<int64_t> balance,
                 double boundary, double skips) {
  return {name,       [] { return resnet101(); },
          image<224>, std::move(balance),
          boundary,   skips};
}

// Stages run on four devices in turn. Of the reference's balances, only those
// are used whose copies are always between different devices.
INSTANTIATE_TEST_SUITE_P(
    Models, Edges,
    ::testing::Values(
        unet_case<5>("UNet2", {104, 137}, 0.5625, 16.875, 32),
        unet_case<5>("UNet4", {30, 66, 84, 61}, 6.1875, 16.875, 32),
        unet_case<5>("UNet4ForTheTimeline", {34, 76, 70, 61}, 5.765625, 17.4375,
                     32),
        unet_case<5>("UNet8", {16, 27, 31, 44, 22, 57, 27, 17}, 24.1875,
                     17.4375, 32),
        unet_case<24>("UNet4Of24Convolutions", {472, 54, 36, 515}, 2.8125,
                      43.59375, 80),
        unet_case<48>("UNet8Of48Convolutions",
                      {800, 140, 62, 36, 36, 36, 36, 987}, 6.328125, 43.59375,
                      80),
        resnet_case("ResNet2", {140, 230}, 0.19140625, 0.765625),
        resnet_case("ResNet2WithoutASkip", {135, 235}, 0.765625, 0),
        resnet_case("ResNet4", {44, 92, 124, 110}, 1.33984375, 3.828125),
        resnet_case("ResNet8", {26, 22, 33, 44, 44, 66, 66, 69}, 9.1875, 0),
        Case{"AmoebaNet",
             [] { return amoebanetd(10, 18, 8); },
             image<64>,
             {3, 6, 7, 8}},
        Case{"TiedTransformer",
             [] {
               return transformer(TransformerOptions()
                                      .num_layers(3)
                                      .width(16)
                                      .feed_forward(32)
                                      .heads(2)
                                      .vocabulary(50)
                                      .sequence(8)
                                      .tied_embeddings(true));
             },
             [] {
               return torch::randint(50, {2, 8}, torch::kLong);
             },
             {1, 3, 3, 2}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpipe::models
