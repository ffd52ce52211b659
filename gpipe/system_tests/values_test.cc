// Tests the inputs and outputs of a pipeline: kinds of values, splitting,
// errors.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/first_output.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::device;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kModes;
using testing::layer;
using testing::ones;
using testing::options;
using ::testing::StartsWith;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Single = std::tuple<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;

template <typename... Layers>
GPipe pipeline_of(int64_t chunks, Layers... layers) {
  torch::nn::Sequential model(layers...);
  return GPipe(model,
               options(std::vector<int64_t>(sizeof...(Layers), 1), chunks));
}

GPipe identity(int64_t chunks = 1) {
  return pipeline_of(chunks, layer([](Tensor x) { return x; }));
}

// --- Splitting ---------------------------------------------------------------

// Returns the rows of each micro-batch, as layers see them.
std::vector<int64_t> split(int64_t rows, int64_t chunks) {
  std::mutex mutex;
  std::vector<int64_t> seen;
  auto pipeline = pipeline_of(chunks, layer([&](Tensor x) {
                                std::lock_guard<std::mutex> lock(mutex);
                                seen.push_back(x.size(0));
                                return x;
                              }));
  const Tensor x = torch::arange(rows).to(device());
  EXPECT_TRUE(torch::equal(pipeline->forward(x), x));
  return seen;
}

TEST(Split, IsThatOfTorchChunk) {
  for (int64_t rows = 1; rows < 20; ++rows) {
    for (int64_t chunks = 1; chunks < 10; ++chunks) {
      std::vector<int64_t> expected;
      for (const auto& each : torch::arange(rows).chunk(chunks)) {
        expected.push_back(each.size(0));
      }
      ASSERT_EQ(split(rows, chunks), expected) << rows << " by " << chunks;
    }
  }
}

// Rows, other dimensions, training and evaluation may change with each call,
// even while graphs of other calls wait for their backward.
TEST(Split, MayBeAnotherInEveryCall) {
  for (const Checkpoint mode : kModes) {
    GPipe pipeline(torch::nn::Sequential(layer([](Tensor x) { return x * x; }),
                                         layer([](Tensor x) { return x * 3; })),
                   options({1, 1}, 4, mode));
    Tensors inputs, outputs;
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {8, 3}, {3, 3}, {8}, {1, 2, 5}, {0, 3}, {5, 3}, {16, 1}}) {
      inputs.push_back(torch::randn(sizes).to(device()).requires_grad_());
      outputs.push_back(pipeline->forward(inputs.back()));
      pipeline->eval();
      const torch::NoGradGuard no_grad;
      const Tensor x = torch::randn({4, 7}).to(device());
      EXPECT_TRUE(torch::equal(pipeline->forward(x).cpu(), (x * x * 3).cpu()));
      pipeline->train();
    }
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      EXPECT_TRUE(
          torch::equal(outputs[k].cpu(), (inputs[k] * inputs[k] * 3).cpu()));
      outputs[k].sum().backward();
      EXPECT_TRUE(
          torch::equal(inputs[k].grad(), inputs[k] * 3 + inputs[k] * 3));
    }
  }
}

TEST(Split, OfNoRowsTrainsWithZeroGradients) {
  for (const Checkpoint mode : kModes) {
    torch::nn::Linear linear(3, 2);
    torch::nn::Sequential model(linear);
    GPipe pipeline(model, options({1}, 4, mode));
    const Tensor x = torch::zeros({0, 3}).to(device()).requires_grad_();
    const auto output = pipeline->forward(x);
    EXPECT_EQ(output.sizes(), torch::IntArrayRef({0, 2}));
    output.sum().backward();
    EXPECT_TRUE(
        torch::equal(linear->weight.grad().cpu(), torch::zeros({2, 3})));
    EXPECT_EQ(x.grad().sizes(), torch::IntArrayRef({0, 3}));
  }
}

TEST(Split, OfFewRowsTrains) {
  for (const int64_t rows : {7, 2}) {
    torch::nn::Linear linear(3, 2);
    auto pipeline = pipeline_of(4, linear);
    pipeline->forward(ones({rows, 3})).sum().backward();
    EXPECT_TRUE(torch::allclose(linear->bias.grad().cpu(),
                                torch::full({2}, static_cast<float>(rows))));
  }
}

TEST(Gather, TakesOutputsOfOtherLengthsThanTheirInputs) {
  // Layers return half of the rows, or every row twice; the sizes differ by
  // micro-batch.
  auto half = pipeline_of(
      3, layer([](Tensor x) { return x.narrow(0, 0, (x.size(0) + 1) / 2); }));
  auto twice = pipeline_of(3, layer([](Tensor x) {
                             return torch::cat({x, x * 10});
                           }));
  const Tensor x = torch::arange(7.0).to(device()).requires_grad_();
  EXPECT_TRUE(torch::equal(half->forward(x).cpu(),
                           torch::tensor({0.f, 1.f, 3.f, 4.f, 6.f})));
  half->forward(x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad().cpu(),
                           torch::tensor({1.f, 1.f, 0.f, 1.f, 1.f, 0.f, 1.f})));
  EXPECT_EQ(twice->forward(x).size(0), 14);
}

// The messages of warnings, while in scope.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    texts_.push_back(warning.msg());
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  // Includes warnings that are given once in the life of the process.
  const c10::WarningUtils::WarnAlways always_{true};
  std::vector<std::string> texts_;
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// x.mean(0, true) gives a row for each micro-batch. The plain model gives one.
TEST(Gather, WarnsOfALayerThatReducesRows) {
  Warnings warnings;
  const auto mean = layer([](Tensor x) { return x.mean(0, true); });
  auto pipeline = pipeline_of(2, mean);
  EXPECT_EQ(pipeline->forward(ones({4, 3})).sizes(),
            (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(warnings.texts().size(), 1u);
  EXPECT_THAT(warnings.texts()[0],
              StartsWith("the output of micro-batch 0 (of 2) has 1 row, but "
                         "the input of that micro-batch has 2 rows. "));
  const auto sum = [](Tensor output, Tensor) { return output.sum(); };
  const Tensor x = ones({4, 3});
  pipeline->train_step(x, x, sum, forward_only(1, 2),
                       TrainOptions().outputs(true));
  EXPECT_EQ(warnings.texts().size(), 2u);
  pipeline->train_step(x, x, sum, forward_only(1, 2));
  pipeline_of(1, mean)->forward(x);
  pipeline_of(2, layer([](Tensor x) { return x.repeat({3, 1}); }))->forward(x);
  EXPECT_EQ(warnings.texts().size(), 2u);
}

TEST(Scatter, WarnsOfALayerThatTakesTimeFirst) {
  Warnings warnings;
  const auto pipeline_with = [](bool batch_first, int64_t chunks) {
    torch::nn::Sequential model(first_output(torch::nn::LSTM(
        torch::nn::LSTMOptions(3, 2).batch_first(batch_first))));
    return GPipe(model,
                 GPipeOptions({1}).devices({torch::kCPU}).chunks(chunks));
  };
  const Tensor x = torch::ones({4, 5, 3});
  auto pipeline = pipeline_with(false, 2);
  EXPECT_EQ(pipeline->forward(x).sizes(), (std::vector<int64_t>{4, 5, 2}));
  ASSERT_EQ(warnings.texts().size(), 1u);
  EXPECT_THAT(warnings.texts()[0],
              StartsWith("layer '0' takes time along dimension 0 of its input "
                         "and rows along dimension 1, but a pipeline splits "
                         "dimension 0: each of the 2 micro-batches has a part "
                         "of the time, "));
  const auto sum = [](Tensor output, Tensor) { return output.sum(); };
  pipeline->train_step(x, x, sum, forward_only(1, 2));
  EXPECT_EQ(warnings.texts().size(), 2u);
  pipeline->forward(Microbatches<Tensor>{{x, x}});
  pipeline_with(false, 1)->forward(x);
  pipeline_with(true, 2)->forward(x);
  EXPECT_EQ(warnings.texts().size(), 2u);
}

TEST(Gather, RefusesAScalarPerMicrobatch) {
  auto pipeline = pipeline_of(2, layer([](Tensor x) { return x.mean(); }));
  EXPECT_THAT(error_of([&] { pipeline->forward(ones({4})); }),
              StartsWith("c10::ValueError: element 0 of the output of "
                         "micro-batch 0 is a scalar, which cannot be "
                         "concatenated along dimension 0"));
  // A single micro-batch is not concatenated, so a scalar is allowed.
  EXPECT_EQ(pipeline->forward(ones({1})).dim(), 0);
}

TEST(Gather, RefusesOutputsThatDoNotFitTogether) {
  auto pipeline = pipeline_of(2, layer([](Tensor x) {
                                return x.size(0) == 2 ? x : x.repeat({1, 2});
                              }));
  EXPECT_THAT(
      error_of([&] {
        pipeline->forward(ones({3, 1}));
      }),
      StartsWith("c10::ValueError: element 0 of the output has sizes "
                 "[2, 1] in micro-batch 0 but [1, 2] in micro-batch 1"));
}

TEST(Gather, RefusesOutputsOfVaryingNumber) {
  auto pipeline = pipeline_of(
      2, layer<Tensors>([](Tensor x) { return Tensors(x.size(0), x); }));
  EXPECT_EQ(
      error_of([&] {
        pipeline->forward<Tensors>(ones({3, 1}));
      }),
      "c10::ValueError: the outputs of the micro-batches do not fit together: "
      "micro-batch 0 gave a vector of 2 tensors, micro-batch 1 gave a vector "
      "of 1 tensor (in partition 0, all micro-batches, gather)");
}

// --- Kinds of values ---------------------------------------------------------

TEST(Kind, PairGoesInAndOutAndBothGetGradients) {
  auto pipeline =
      pipeline_of(2, layer<Pair, Pair>([](Pair pair) {
                    return Pair(std::get<0>(pair) * 2, std::get<1>(pair) * 3);
                  }),
                  layer<Pair, Pair>([](Pair pair) { return pair; }));
  const Tensor a = ones({4, 1}).requires_grad_();
  const Tensor b = ones({4, 5}).requires_grad_();
  const auto [c, d] = pipeline->forward<Pair>(Pair(a, b));
  EXPECT_EQ(c.sizes(), a.sizes());
  EXPECT_EQ(d.sizes(), b.sizes());
  (c.sum() + d.sum()).backward();
  EXPECT_TRUE(torch::equal(a.grad(), torch::full_like(a, 2)));
  EXPECT_TRUE(torch::equal(b.grad(), torch::full_like(b, 3)));
}

TEST(Kind, TupleOfOneStaysATuple) {
  auto pipeline = pipeline_of(2, layer<Single, Single>([](Single x) {
                                return Single(std::get<0>(x) * 2);
                              }));
  const Tensor a = ones({4, 1}).requires_grad_();
  const auto [b] = pipeline->forward<Single>(Single(a));
  b.sum().backward();
  EXPECT_TRUE(torch::equal(a.grad(), torch::full_like(a, 2)));
  EXPECT_EQ(error_of([&] { pipeline->forward(Single(a)); }),
            "c10::TypeError: the value is a tuple of 1 tensor, but at::Tensor "
            "was asked for; name the type, T, in the call: forward<T>(), "
            "train_step<T>(), evaluate<T>() or output<T>()");
}

template <std::size_t... I>
void expect_tuple_works(std::index_sequence<I...>) {
  using Tuple = internal::detail::TensorTuple<sizeof...(I)>;
  auto pipeline = pipeline_of(3, layer<Tuple>([](Tensor x) {
                                return Tuple((x + static_cast<double>(I))...);
                              }),
                              layer<Tuple, Tuple>([](Tuple tuple) {
                                return Tuple((std::get<I>(tuple) * 2)...);
                              }));
  const Tensor x = torch::arange(4.0).to(device());
  const auto tuple = pipeline->template forward<Tuple>(x);
  EXPECT_TRUE((torch::equal(std::get<I>(tuple).cpu(),
                            (x.cpu() + static_cast<double>(I)) * 2) &&
               ...));
  const Tuple moved(std::get<I>(tuple).to(device())...);
  EXPECT_TRUE(std::get<0>(pipeline_of(3, layer<Tuple, Tuple>(
                                             [](Tuple each) { return each; }))
                              ->template forward<Tuple>(moved))
                  .equal(x * 2));
}

TEST(Kind, TuplesOfOneToEight) {
  expect_tuple_works(std::make_index_sequence<1>());
  expect_tuple_works(std::make_index_sequence<2>());
  expect_tuple_works(std::make_index_sequence<3>());
  expect_tuple_works(std::make_index_sequence<4>());
  expect_tuple_works(std::make_index_sequence<5>());
  expect_tuple_works(std::make_index_sequence<6>());
  expect_tuple_works(std::make_index_sequence<7>());
  expect_tuple_works(std::make_index_sequence<8>());
}

TEST(Kind, UndefinedElementsOfAVectorStayUndefined) {
  for (const Checkpoint mode : kModes) {
    torch::nn::Sequential model(
        layer<Tensors, Tensors>([](Tensors in) {
          EXPECT_FALSE(in[0].defined());
          return Tensors{in[1] * 2, Tensor(), in[1].to(torch::kLong)};
        }),
        layer<Tensors, Tensors>([](Tensors in) {
          EXPECT_FALSE(in[1].defined());
          return Tensors{in[2], Tensor(), in[0]};
        }));
    GPipe pipeline(model, options({1, 1}, 2, mode));
    const Tensor x = ones({4}).requires_grad_();
    const auto out = pipeline->forward<Tensors>(Tensors{Tensor(), x});
    ASSERT_EQ(out.size(), 3u);
    EXPECT_EQ(out[0].scalar_type(), torch::kLong);
    EXPECT_FALSE(out[1].defined());
    out[2].sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full_like(x, 2)));
  }
}

// The last layer may return them, too, to forward() and to train_step().
TEST(Kind, UndefinedElementsOfATupleStayUndefined) {
  for (const Checkpoint mode : kModes) {
    torch::nn::Sequential model(
        layer<Pair>([](Tensor x) { return Pair(Tensor(), x * 2); }),
        layer<Pair, Pair>([](Pair in) {
          EXPECT_FALSE(std::get<0>(in).defined());
          return Pair(std::get<1>(in), Tensor());
        }));
    GPipe pipeline(model, options({1, 1}, 2, mode));
    const Tensor x = ones({4}).requires_grad_();
    const auto [first, second] = pipeline->forward<Pair>(x);
    EXPECT_FALSE(second.defined());
    first.sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full_like(x, 2)));
    x.mutable_grad() = Tensor();
    const auto result = pipeline->train_step<Pair>(
        x, x.detach(),
        [](Pair output, Tensor) {
          EXPECT_FALSE(std::get<1>(output).defined());
          return std::get<0>(output).mean();
        },
        fill_drain(2, 2), TrainOptions().outputs(true));
    EXPECT_EQ(result.loss.item<float>(), 2);
    EXPECT_TRUE(torch::equal(x.grad(), torch::full_like(x, 0.5)));
    EXPECT_FALSE(std::get<1>(result.output<Pair>()).defined());
  }
}

TEST(Kind, AnEmptyVectorMayCrossPartitions) {
  auto pipeline =
      pipeline_of(2, layer<Tensors>([](Tensor) { return Tensors(); }),
                  layer<Tensors, Tensors>([](Tensors in) { return in; }));
  EXPECT_TRUE(pipeline->forward<Tensors>(ones({4})).empty());
}

TEST(Kind, IntegersPassBetweenPartitions) {
  for (const Checkpoint mode : kModes) {
    torch::nn::Embedding embedding(5, 3);
    torch::nn::Sequential model(layer([](Tensor x) { return x + 1; }),
                                embedding);
    GPipe pipeline(model, options({1, 1}, 2, mode));
    const Tensor tokens =
        torch::tensor({0, 1, 2, 3, 0}, torch::kLong).to(device());
    pipeline->forward(tokens).sum().backward();
    EXPECT_TRUE(torch::equal(embedding->weight.grad().select(1, 0).cpu(),
                             torch::tensor({0.f, 2.f, 1.f, 1.f, 1.f})));
  }
}

TEST(EmptySequential, ReturnsTheInput) {
  GPipe pipeline(torch::nn::Sequential(),
                 GPipeOptions(std::vector<int64_t>()).chunks(2));
  EXPECT_EQ(pipeline->size(), 0);
  EXPECT_TRUE(pipeline->is_empty());
  EXPECT_TRUE(pipeline->devices().empty());
  const Tensor x = torch::ones({3});
  EXPECT_TRUE(pipeline->forward(x).is_same(x));
  EXPECT_TRUE(std::get<0>(pipeline->forward<Single>(Single(x))).is_same(x));
  EXPECT_THAT(error_of([&] { pipeline->forward(42); }),
              StartsWith("c10::TypeError: expected a torch::Tensor"));
}

// --- Errors ------------------------------------------------------------------

TEST(InputError, NoTensor) {
  auto pipeline = identity();
  EXPECT_EQ(error_of([&] { pipeline->forward(42); }),
            "c10::TypeError: expected a torch::Tensor, a "
            "std::vector<torch::Tensor> or a std::tuple of 1 to 8 "
            "torch::Tensor, but got int");
  EXPECT_THAT(error_of([&] { pipeline->forward(std::string("x")); }),
              HasSubstr("basic_string"));
  EXPECT_THAT(
      error_of([&] { pipeline->forward(std::make_tuple(ones({1}), 42)); }),
      StartsWith("c10::TypeError: expected a torch::Tensor"));
  EXPECT_THAT(error_of([&] { pipeline->forward(std::tuple<>()); }),
              StartsWith("c10::TypeError: expected a torch::Tensor"));
}

TEST(InputError, NothingToSplit) {
  auto pipeline = identity();
  EXPECT_EQ(error_of([&] { pipeline->forward(torch::tensor(1.0)); }),
            "c10::ValueError: the input has no dimension 0 to split into "
            "micro-batches (a scalar); pass at least a 1-dimensional tensor");
  EXPECT_EQ(error_of([&] { pipeline->forward(Tensor()); }),
            "c10::TypeError: the input is an undefined tensor");
  EXPECT_THAT(
      error_of([&] {
        pipeline->forward(Tensors{ones({2}), Tensor(), torch::tensor(1)});
      }),
      StartsWith("c10::ValueError: element 2 of the input has no dimension 0"));
  for (const Tensors& empty : {Tensors(), Tensors(2)}) {
    EXPECT_EQ(error_of([&] { pipeline->forward(empty); }),
              "c10::ValueError: the input holds no defined tensor, so that "
              "there is nothing to split into micro-batches (it is a vector "
              "of " +
                  std::to_string(empty.size()) + " tensors)");
  }
}

TEST(InputError, UnequalSizes) {
  EXPECT_EQ(error_of([&] {
              identity()->forward(Tensors{ones({8, 2}), Tensor(), ones({3})});
            }),
            "c10::ValueError: the tensors of the input differ in size along "
            "dimension 0, which is split into micro-batches (sizes: 8 "
            "undefined 3); name an element that every micro-batch needs whole "
            "in the option unsplit. If it counts rows or positions of the "
            "mini-batch, or has its rows in another dimension, split the input "
            "yourself and pass Microbatches");
}

TEST(InputError, WrongDevice) {
  std::vector<torch::Device> wrong{torch::Device(torch::kMeta)};
  if (!device().is_cpu()) wrong.emplace_back(torch::kCPU);
  if (device(1) != device(0)) wrong.push_back(device(1));
  for (const torch::Device& where : wrong) {
    EXPECT_EQ(error_of([&] { identity()->forward(torch::empty({2}, where)); }),
              "c10::ValueError: the input is on " + where.str() +
                  " but the first partition is on " + device().str() +
                  "; move it there first (devices()[0])");
  }
}

TEST(OutputError, AnotherTypeThanAskedFor) {
  const Tensor x = ones({2});
  EXPECT_THAT(error_of([&] { identity()->forward<Tensors>(x); }),
              StartsWith("c10::TypeError: the value is a tensor, but "));
  EXPECT_THAT(error_of([&] { identity()->forward<int>(x); }),
              StartsWith("c10::TypeError: expected a torch::Tensor"));
  auto pair = pipeline_of(1, layer<Pair>([](Tensor x) { return Pair(x, x); }));
  EXPECT_THAT(error_of([&] { pair->forward(x); }),
              StartsWith("c10::TypeError: the value is a tuple of 2 tensors"));
  EXPECT_THAT(
      error_of([&] { pair->forward<std::tuple<Tensor, Tensor, Tensor>>(x); }),
      StartsWith("c10::TypeError: the value is a tuple of 2 tensors"));
}

TEST(LayerError, ReturningNoTensor) {
  const Tensor x = ones({2});
  const auto expected = StartsWith(
      "c10::TypeError: a layer must return a torch::Tensor, a "
      "std::vector<torch::Tensor> or a std::tuple of 1 to 8 torch::Tensor");
  EXPECT_THAT(error_of([&] {
                pipeline_of(1, layer<std::string>(
                                   [](Tensor) { return std::string("hello"); }))
                    ->forward(x);
              }),
              expected);
  using Mixed = std::tuple<Tensor, std::string>;
  EXPECT_THAT(error_of([&] {
                pipeline_of(
                    1, layer<Mixed>([](Tensor x) { return Mixed(x, "hello"); }))
                    ->forward(x);
              }),
              expected);
}

TEST(LayerError, ReturningAnUndefinedTensor) {
  EXPECT_THAT(error_of([&] {
                pipeline_of(1, layer([](Tensor) { return Tensor(); }))
                    ->forward(ones({2}));
              }),
              StartsWith("c10::TypeError: layer '0' returned an undefined "
                         "tensor"));
}

TEST(LayerError, TakingAnotherTypeThanTheOneBeforeGives) {
  auto pipeline =
      pipeline_of(1, layer<Tensors>([](Tensor x) { return Tensors{x}; }),
                  layer([](Tensor x) { return x; }));
  const auto error = error_of([&] { pipeline->forward(ones({2})); });
  EXPECT_THAT(error, StartsWith("c10::Error: "));
  EXPECT_THAT(error, HasSubstr("(in partition 1, micro-batch 0, forward, "
                               "layer '1')"));
}

}  // namespace
}  // namespace gpipe
