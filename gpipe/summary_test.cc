#include "gpipe/summary.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::layer;
using ::testing::ThrowsMessage;
using torch::Tensor;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

// A model with inputs and outputs of 8 x 4 floats and 132 parameters.
Sequential model_with_skip() {
  Sequential model;
  model->push_back("keep", testing::Keep());
  model->push_back("wide", Linear(4, 16));
  model->push_back("relu", ReLU());
  model->push_back("narrow", Linear(16, 4));
  model->push_back("add", testing::Add());
  return model;
}

const std::vector<torch::Device> kCpus(3, torch::kCPU);

std::string text_of(const Summary& summary) {
  std::ostringstream text;
  text << summary;
  return text.str();
}

TEST(SummaryTest, DescribesTheLayersOfAModel) {
  const Summary result = summary(model_with_skip(), torch::ones({8, 4}));
  ASSERT_EQ(result.layers.size(), 5);
  EXPECT_EQ(result.layers[0].name, "keep");
  EXPECT_EQ(result.layers[0].type, "Keep");
  EXPECT_THAT(result.layers[0].stashes, ElementsAre("kept"));
  EXPECT_THAT(result.layers[4].pops, ElementsAre("kept"));
  const LayerSummary& wide = result.layers[1];
  EXPECT_EQ(wide.type, "Linear");
  EXPECT_EQ(wide.parameters, 80);
  EXPECT_EQ(wide.bytes, 320);
  ASSERT_EQ(wide.outputs.size(), 1);
  EXPECT_THAT(wide.outputs[0].sizes, ElementsAre(8, 16));
  EXPECT_EQ(wide.outputs[0].dtype, torch::kFloat);
  EXPECT_EQ(wide.outputs[0].bytes(), 512);
  EXPECT_EQ(result.parameters(), 148);
  EXPECT_EQ(result.bytes(), 592);
  ASSERT_EQ(result.partitions.size(), 1);
  EXPECT_THAT(result.crossings, IsEmpty());
}

TEST(SummaryTest, NeedsNoInputForAllButShapes) {
  const Summary result = summary(model_with_skip());
  EXPECT_EQ(result.parameters(), 148);
  EXPECT_THAT(result.layers[1].outputs, IsEmpty());
  const std::vector<int64_t> balance = {2, 3};
  EXPECT_EQ(summary(model_with_skip(), balance).partitions.size(), 2);
  EXPECT_EQ(summary(model_with_skip(), {2, 2, 1}).partitions.size(), 3);
}

TEST(SummaryTest, SaysWhatCrossesWhere) {
  const Summary result =
      summary(model_with_skip(), {2, 1, 2}, torch::ones({8, 4}));
  ASSERT_EQ(result.partitions.size(), 3);
  EXPECT_EQ(result.partitions[0].parameters, 80);
  EXPECT_EQ(result.partitions[1].first_layer, 2);
  EXPECT_EQ(result.partitions[1].parameters, 0);
  EXPECT_EQ(result.partitions[2].layers, 2);
  EXPECT_EQ(result.partitions[2].bytes, 272);
  EXPECT_FALSE(result.partitions[0].device.has_value());
  ASSERT_EQ(result.crossings.size(), 3);
  EXPECT_EQ(result.crossings[0].to, 1);
  EXPECT_EQ(result.crossings[0].bytes, 512);
  EXPECT_EQ(result.crossings[1].from, 1);
  EXPECT_EQ(result.crossings[1].to, 2);
  EXPECT_EQ(result.crossings[1].bytes, 512);
  const CrossingSummary& skip = result.crossings[2];
  EXPECT_EQ(skip.from, 0);
  EXPECT_EQ(skip.to, 2);
  EXPECT_EQ(skip.bytes, 128);
  ASSERT_TRUE(skip.skip.has_value());
  EXPECT_EQ(skip.skip->name, "kept");
  EXPECT_EQ(skip.skip->stashed_by, "keep");
  EXPECT_EQ(skip.skip->popped_by, "add");
}

TEST(SummaryTest, DescribesAPipelineWithItsDevices) {
  GPipe pipeline(model_with_skip(), GPipeOptions({2, 3}).devices(kCpus));
  const Summary result = summary(pipeline, torch::ones({8, 4}));
  ASSERT_EQ(result.partitions.size(), 2);
  EXPECT_EQ(result.partitions[1].device, torch::Device(torch::kCPU));
  EXPECT_EQ(result.layers[1].name, "wide");
  EXPECT_EQ(result.crossings.size(), 2);
  EXPECT_EQ(summary(pipeline).crossings[1].bytes, std::nullopt);
  // The pipeline still works afterwards.
  EXPECT_EQ(pipeline->forward(torch::ones({8, 4})).size(0), 8);
}

TEST(SummaryTest, PrintsATable) {
  GPipe pipeline(model_with_skip(), GPipeOptions({2, 3}).devices(kCpus));
  EXPECT_EQ(text_of(summary(pipeline, torch::ones({8, 4}))),
            "  #  layer   type             output           parameters\n"
            "partition 0 on cpu: 2 layers, 80 parameters, 320 B\n"
            "  0  keep    Keep stash kept  float32 [8, 4]            0\n"
            "  1  wide    Linear           float32 [8, 16]          80\n"
            "partition 1 on cpu: 3 layers, 68 parameters, 272 B\n"
            "  2  relu    ReLU             float32 [8, 16]           0\n"
            "  3  narrow  Linear           float32 [8, 4]           68\n"
            "  4  add     Add pop kept     float32 [8, 4]            0\n"
            "in all: 5 layers, 148 parameters, 592 B\n"
            "between partitions:\n"
            "  from 0 to 1: boundary, 512 B\n"
            "  from 0 to 1: skip kept, keep to add, 128 B\n");
}

TEST(SummaryTest, PrintsAPipelinesOptions) {
  GPipe pipeline(model_with_skip(),
                 GPipeOptions({2, 3}).devices(kCpus).chunks(4).checkpoint(
                     Checkpoint::kAlways));
  std::ostringstream text;
  text << *pipeline;
  EXPECT_THAT(text.str(),
              HasSubstr("gpipe::GPipe(balance=[2, 3], devices=[cpu, cpu], "
                        "chunks=4, checkpoint=always)(\n"
                        "  (keep): "));
}

TEST(SummaryTest, KnowsTuplesVectorsAndUndefinedTensors) {
  using Pair = std::tuple<Tensor, Tensor>;
  using Tensors = std::vector<Tensor>;
  const Sequential model(layer<Pair>([](Tensor x) {
                           return Pair(x.slice(1, 0, 1), x.to(torch::kLong));
                         }),
                         layer<Tensors, Pair>([](Pair x) {
                           return Tensors{std::get<0>(x), Tensor()};
                         }));
  const Summary result = summary(model, {1, 1}, torch::ones({8, 4}));
  EXPECT_EQ(result.layers[0].outputs[1].text(), "int64 [8, 4]");
  EXPECT_EQ(result.layers[1].outputs[1].text(), "undefined");
  EXPECT_EQ(result.crossings[0].bytes, 8 * 4 + 8 * 4 * 8);
  EXPECT_THAT(text_of(result), HasSubstr("(float32 [8, 1], int64 [8, 4])"));
}

TEST(SummaryTest, CountsASharedParameterOnce) {
  Linear first(4, 4), second(4, 4);
  second->register_parameter("shared", first->weight);
  const Summary result = summary(Sequential(first, second));
  EXPECT_EQ(result.layers[0].parameters, 20);
  EXPECT_EQ(result.layers[1].parameters, 20);  // without the shared parameter
}

TEST(SummaryTest, CountsSparseBuffers) {
  Linear linear(4, 4);
  linear->register_buffer("edges", torch::eye(8).to_sparse());
  const Summary result = summary(Sequential(linear));
  EXPECT_EQ(result.layers[0].buffers, 8 * 8);
  // Two indices and a number for each of 8 edges.
  EXPECT_EQ(result.layers[0].bytes, 20 * 4 + 8 * (2 * 8 + 4));
}

TEST(SummaryTest, ChangesNothing) {
  torch::nn::BatchNorm1d norm(4);
  Sequential model(Linear(4, 4), norm, torch::nn::Dropout(0.5));
  const Tensor weight = model->parameters()[0].detach().clone();
  torch::manual_seed(1);
  const Tensor expected = torch::rand({3});
  torch::manual_seed(1);
  summary(model, torch::ones({8, 4}));
  EXPECT_TRUE(torch::rand({3}).equal(expected));
  EXPECT_TRUE(model->parameters()[0].equal(weight));
  EXPECT_TRUE(norm->running_mean.equal(torch::zeros({4})));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  EXPECT_TRUE(model->is_training());
}

// The operators return nothing and take no tensor of the meta device.
TEST(SummaryTest, LeavesBuffersThatOperatorsForListsChange) {
  const Tensor mean = torch::ones({4});
  const Sequential model{torch::nn::Functional([&](Tensor x) {
    torch::_foreach_mul_({mean}, 2);
    torch::_assert_async(x.sum().ne(0));
    return x + mean;
  })};
  EXPECT_EQ(summary(model, torch::ones({2, 4})).layers.size(), 1u);
  EXPECT_TRUE(torch::equal(mean, torch::ones({4})));
}

TEST(SummaryTest, LeavesALayerThatReplacesItsTensors) {
  struct Replacing : torch::nn::Module {
    Tensor forward(Tensor x) {
      mask = torch::ones({x.size(1)});
      mean.set_data(x.detach().mean(0));
      weight.set_data(weight.detach().clamp(-1, 1));
      return (x - mean) * mask * weight;
    }
    Tensor weight = register_parameter("weight", torch::full({4}, 3.f));
    Tensor mean = register_buffer("mean", torch::zeros({4}));
    // The last one, since a later registration moves the entries.
    Tensor& mask = register_buffer("mask", Tensor());
  };
  const auto layer = std::make_shared<Replacing>();
  const Sequential model(Linear(4, 4), layer);
  const auto result = summary(model, torch::ones({8, 4}));
  EXPECT_THAT(result.layers[1].outputs[0].sizes, ElementsAre(8, 4));
  EXPECT_FALSE(layer->mask.defined());
  EXPECT_TRUE(layer->mean.equal(torch::zeros({4})));
  EXPECT_TRUE(layer->weight.equal(torch::full({4}, 3.f)));
  EXPECT_TRUE(layer->forward(torch::ones({8, 4})).equal(torch::zeros({8, 4})));
}

TEST(SummaryTest, TakesNoMemory) {
  const auto peak = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t{usage.ru_maxrss} * 1024;
  };
  using torch::nn::Conv2d, torch::nn::Conv2dOptions;
  Sequential model(Conv2d(Conv2dOptions(3, 64, 3).padding(1)), ReLU());
  const int64_t before = peak();
  // The output would have 256 GiB, and the input has no memory either.
  const Tensor input = torch::empty({1024, 3, 1024, 1024}, torch::kMeta);
  EXPECT_EQ(summary(model, input).layers[1].outputs[0].bytes(),
            int64_t{1} << 38);
  EXPECT_LT(peak() - before, int64_t{1} << 26);
}

TEST(SummaryTest, NamesWhatDoesNotFit) {
  EXPECT_THAT([] { summary(Sequential(nullptr)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("null")));
  EXPECT_THAT([] { summary(GPipe(nullptr)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("null")));
  const Tensor input = torch::ones({8, 4});
  EXPECT_THAT(
      [&] {
        summary(model_with_skip(), {2, 2}, input);
      },
      ThrowsMessage<c10::ValueError>(
          HasSubstr("(module: 5, sum of balance: 4, balance: [2, 2])")));
  constexpr int64_t kLarge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(
      [&] {
        summary(model_with_skip(), {kLarge, kLarge, 7}, input);
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("sum of balance: too large")));
  EXPECT_THAT(
      [&] {
        summary(model_with_skip(), {5, 0}, input);
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("positive")));
  EXPECT_THROW(summary(Sequential(testing::Keep()), input), c10::TypeError);
  EXPECT_THROW(summary(model_with_skip(), 3), c10::TypeError);
  EXPECT_THROW(summary(model_with_skip(), torch::ones({8, 5})), c10::Error);
}

TEST(SummaryTest, ShowsLibTorchsTransformers) {
  using torch::nn::TransformerEncoder, torch::nn::TransformerEncoderLayer,
      torch::nn::TransformerEncoderLayerOptions;
  const TransformerEncoderLayer layer(
      TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
  const Sequential model(layer, TransformerEncoder(layer, 2));
  const Summary shown = summary(model, torch::ones({5, 3, 8}));
  EXPECT_EQ(shown.layers[0].outputs[0].text(), "float32 [5, 3, 8]");
  EXPECT_EQ(shown.layers[1].outputs[0].text(), "float32 [5, 3, 8]");
}

struct PositivesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x.masked_select(x.gt(0)); }
};
TORCH_MODULE(Positives);

TEST(SummaryTest, NamesALayerThatNeedsValues) {
  const Tensor input = torch::ones({8, 4});
  const auto scaled =
      layer([](Tensor x) { return x * x.max().item<double>(); });
  EXPECT_THAT(
      [&] { summary(Sequential(scaled), input); },
      ThrowsMessage<c10::NotImplementedError>(AllOf(
          HasSubstr("item(): reads a value"), HasSubstr("in layer 0 ('0', "))));
  Sequential model;
  model->push_back("relu", ReLU());
  model->push_back("positives", Positives());
  EXPECT_THAT(
      [&] { summary(model, input); },
      ThrowsMessage<c10::NotImplementedError>(AllOf(
          HasSubstr("aten::masked_select: the shape of the result depends on "
                    "values"),
          HasSubstr("in layer 1 ('positives', "), HasSubstr("PositivesImpl"),
          HasSubstr("balance_by_time()"))));
}

TEST(SummaryTest, IsUsableAfterALayerHasThrown) {
  const Sequential model = model_with_skip();
  EXPECT_THROW(summary(model, torch::ones({8, 5})), c10::Error);
  EXPECT_TRUE(torch::zeros({1}).is_cpu());
  EXPECT_EQ(summary(model, torch::ones({8, 4})).layers.size(), 5);
}

}  // namespace
}  // namespace gpipe
