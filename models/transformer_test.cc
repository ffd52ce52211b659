#include "models/transformer.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/meta.h"
#include "gpipe/skip.h"
#include "models/testing/figures.h"

namespace gpipe::models {
namespace {

using ::testing::AllOf;
using testing::count_parameters;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::layer_names;
using testing::norm_of;
using testing::parameters_by;
using testing::sum_of;
using testing::sum_of_squares;
using ::testing::ThrowsMessage;
using torch::Tensor;
using torch::nn::Sequential;

Sequential on_meta(const TransformerOptions& options) {
  const MetaGuard meta;
  return transformer(options);
}

TransformerOptions small() {
  return TransformerOptions()
      .num_layers(2)
      .width(16)
      .feed_forward(40)
      .heads(4)
      .vocabulary(50)
      .sequence(12)
      .dropout(0);
}

// Returns tokens in an order that is equal in every language.
Tensor tokens(int64_t batch, int64_t length, int64_t vocabulary) {
  return (torch::arange(batch * length, torch::kLong) * 7 % vocabulary)
      .view({batch, length});
}

Tensor loss_of(const Tensor& logits) { return logits.square().sum(); }

// Table 1 of the GPipe paper.
TEST(TransformerTest, HasTheSizesOfThePaper) {
  const std::vector<std::pair<int64_t, int64_t>> settings = {
      {3, 282182912},     {13, 785765632},     {103, 5318010112},
      {415, 21029790976}, {1663, 83876914432},
  };
  for (const auto& [num_layers, parameters] : settings) {
    const Sequential model =
        on_meta(TransformerOptions().num_layers(num_layers));
    EXPECT_EQ(count_parameters(*model), parameters);
    EXPECT_EQ(parameters, 50358272 * num_layers + 131108096);
    EXPECT_EQ(model->size(), 2 * num_layers + 3);
  }
}

TEST(TransformerTest, HasTheParametersOfThePartsOfABlock) {
  EXPECT_THAT(parameters_by(on_meta(TransformerOptions().num_layers(1)),
                            {1, 1, 1, 1, 1}),
              ElementsAre(32000 * 2048, 16785408 + 4096, 33564672 + 4096, 4096,
                          32000 * 2048 + 32000));
}

TEST(TransformerTest, CountsATiedMatrixOnce) {
  const auto options = TransformerOptions().num_layers(3);
  const Sequential tied =
      on_meta(TransformerOptions(options).tied_embeddings(true));
  EXPECT_EQ(count_parameters(*tied), 282182912 - 32000 * 2048);
  EXPECT_EQ(count_parameters(*on_meta(
                TransformerOptions(options).positions(Positions::kLearned))),
            282182912 + 1024 * 2048);
}

TEST(TransformerTest, NamesLayersByBlock) {
  EXPECT_THAT(layer_names(transformer(small())),
              ElementsAre("embedding", "block_0_attention",
                          "block_0_feed_forward", "block_1_attention",
                          "block_1_feed_forward", "norm", "output"));
}

// The numbers of the next two tests come from Python (torch 2.11.0, CPU):
//
//   torch.manual_seed(0)
//   embedding = torch.empty(V, D).normal_(0, 1 / math.sqrt(D))
//   layers = [nn.TransformerEncoderLayer(D, F, nhead=H, dropout=0.0,
//       activation=..., norm_first=..., batch_first=True) for _ in range(L)]
//   norm, output = nn.LayerNorm(D), nn.Linear(D, V)
//
// with a causal mask, and x = embedding[tokens] * math.sqrt(D) + positions.
// They are sums and sums of squares over all parameters as double.
TEST(TransformerTest, DrawsTheWeightsOfThePythonModules) {
  torch::manual_seed(0);
  const Sequential model = transformer(small());
  EXPECT_EQ(model->parameters().size(), 29);
  EXPECT_NEAR(sum_of(model->parameters()), 83.94447440656222, 1e-9);
  EXPECT_NEAR(sum_of_squares(model->parameters()), 246.4082465257633, 1e-9);
  EXPECT_NEAR(norm_of(model, "embedding.weight"), 7.22322416305542, 1e-6);
  EXPECT_NEAR(norm_of(model, "block_1_attention.in_proj_weight"),
              4.853355407714844, 1e-6);
  EXPECT_NEAR(norm_of(model, "block_1_feed_forward.linear2.weight"),
              2.325021505355835, 1e-6);
  EXPECT_NEAR(norm_of(model, "output.weight"), 4.087588310241699, 1e-6);
}

TEST(TransformerTest, ComputesWhatThePythonModulesCompute) {
  torch::manual_seed(0);
  Sequential model = transformer(small());
  model->to(torch::kDouble);
  Tensor y = model->forward(tokens(3, 11, 50));
  EXPECT_THAT(y.sizes(), ElementsAre(3, 11, 50));
  loss_of(y).backward();
  EXPECT_NEAR(sum_of({y}), -44.2293080739498, 1e-10);
  EXPECT_NEAR(y.norm().item<double>(), 23.4399428950907, 1e-10);
  EXPECT_NEAR(sum_of_squares(testing::gradients_of(model)), 311312.393764243,
              1e-6);

  // With LayerNorm after the sums, and GELU.
  torch::manual_seed(0);
  model = transformer(TransformerOptions()
                          .num_layers(3)
                          .width(24)
                          .feed_forward(32)
                          .heads(3)
                          .vocabulary(30)
                          .sequence(9)
                          .dropout(0)
                          .norm(NormPlace::kPost)
                          .activation(Activation::kGelu));
  EXPECT_NEAR(sum_of(model->parameters()), 183.0775068264138, 1e-9);
  model->to(torch::kDouble);
  y = model->forward(tokens(3, 8, 30));
  loss_of(y).backward();
  EXPECT_NEAR(sum_of({y}), -61.6624930409144, 1e-10);
  EXPECT_NEAR(y.norm().item<double>(), 16.219869334618, 1e-10);
  EXPECT_NEAR(sum_of_squares(testing::gradients_of(model)), 201238.970721102,
              1e-6);
}

TEST(TransformerTest, DoesNotLookAhead) {
  Sequential model = transformer(small());
  model->to(torch::kDouble);
  Tensor before = tokens(2, 12, 50);
  Tensor after = before.clone();
  after.slice(1, 7) = 3;
  const Tensor a = model->forward(before), b = model->forward(after);
  EXPECT_TRUE(a.slice(1, 0, 7).equal(b.slice(1, 0, 7)));
  for (int64_t place = 7; place < 12; ++place) {
    EXPECT_FALSE(a.select(1, place).allclose(b.select(1, place)));
  }
}

TEST(TransformerTest, TellsPlacesApartByPositionsAlone) {
  const Tensor same = torch::full({1, 4}, 7, torch::kLong);
  for (const auto positions :
       {Positions::kSinusoidal, Positions::kLearned, Positions::kNone}) {
    Sequential model = transformer(small().positions(positions));
    const Tensor y = model->forward(same);
    EXPECT_EQ(y.select(1, 0).allclose(y.select(1, 3), 1e-4, 1e-4),
              positions == Positions::kNone);
  }
}

TEST(TransformerTest, TakesShorterSamplesAndOtherIntegers) {
  Sequential model = transformer(small());
  const Tensor all = tokens(2, 12, 50);
  const Tensor y = model->forward(all);
  EXPECT_TRUE(model->forward(all.slice(1, 0, 5))
                  .allclose(y.slice(1, 0, 5), 1e-4, 1e-5));
  EXPECT_TRUE(model->forward(all.to(torch::kInt)).equal(y));
}

TEST(TransformerTest, DropsInTrainingAlone) {
  for (const auto& options :
       {small().dropout(0.5), small().attention_dropout(0.5)}) {
    Sequential model = transformer(options);
    const Tensor x = tokens(2, 12, 50);
    EXPECT_FALSE(model->forward(x).equal(model->forward(x)));
    model->eval();
    EXPECT_TRUE(model->forward(x).equal(model->forward(x)));
  }
}

// ---- Tied embeddings

TransformerOptions tied() { return small().tied_embeddings(true); }

// Returns the same model with the matrix as two parameters.
Sequential untied_copy(const Sequential& model) {
  Sequential copy = transformer(small());
  copy->to(torch::kDouble);
  torch::NoGradGuard no_grad;
  const auto from = model->named_parameters();
  for (auto& named : copy->named_parameters()) {
    named.value().copy_(from[named.key() == "output.weight" ? "embedding.weight"
                                                            : named.key()]);
  }
  return copy;
}

TEST(TransformerTest, AddsTheGradientsOfATiedMatrix) {
  Sequential model = transformer(tied());
  model->to(torch::kDouble);
  EXPECT_NO_THROW(verify_skippables(model));
  Sequential copy = untied_copy(model);
  const Tensor x = tokens(3, 12, 50);
  const Tensor y = model->forward(x), expected = copy->forward(x);
  EXPECT_TRUE(y.equal(expected));
  loss_of(y).backward();
  loss_of(expected).backward();
  const auto gradient_of = [](const Sequential& of, const char* name) {
    return of->named_parameters()[name].grad();
  };
  EXPECT_TRUE(gradient_of(model, "embedding.weight")
                  .allclose(gradient_of(copy, "embedding.weight") +
                                gradient_of(copy, "output.weight"),
                            1e-12, 1e-12));
}

TEST(TransformerTest, TrainsATiedMatrixWithOneStepOfTheOptimizer) {
  Sequential model = transformer(tied());
  int count = 0;
  for (const auto& parameter : model->parameters()) {
    count += parameter.sizes() == torch::IntArrayRef({50, 16});
  }
  EXPECT_EQ(count, 1);
}

TEST(TransformerTest, GivesACloneItsOwnWeights) {
  for (const auto& options :
       {small(), tied(), small().positions(Positions::kLearned)}) {
    testing::expect_clone_with_own_weights(transformer(options),
                                           tokens(2, 12, 50));
  }
}

TEST(TransformerTest, LearnsToRepeatASequence) {
  torch::manual_seed(0);
  Sequential model = transformer(tied());
  const Tensor text = tokens(4, 12, 50);
  const Tensor x = text.slice(1, 0, 11), next = text.slice(1, 1).reshape(-1);
  torch::optim::Adam optimizer(model->parameters(), 1e-2);
  const auto loss = [&] {
    return torch::nn::functional::cross_entropy(model->forward(x).flatten(0, 1),
                                                next);
  };
  for (int step = 0; step < 80; ++step) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  EXPECT_LT(loss().item<double>(), 0.1);
}

// ---- Errors

auto refuses(const std::string& argument, const std::string& allowed) {
  return ThrowsMessage<c10::ValueError>(
      AllOf(HasSubstr("transformer"), HasSubstr(argument), HasSubstr(allowed)));
}

TEST(TransformerTest, NamesTheOptionThatIsNotAllowed) {
  using Options = TransformerOptions;
  const auto make = [](const Options& options) {
    return [options] { transformer(options); };
  };
  for (const int64_t value : {-1, 0}) {
    EXPECT_THAT(make(small().num_layers(value)),
                refuses("num_layers", "at least 1"));
    EXPECT_THAT(make(small().width(value)), refuses("width", "at least 1"));
    EXPECT_THAT(make(small().feed_forward(value)),
                refuses("feed_forward", "at least 1"));
    EXPECT_THAT(make(small().heads(value)), refuses("heads", "at least 1"));
    EXPECT_THAT(make(small().vocabulary(value)),
                refuses("vocabulary", "at least 1"));
    EXPECT_THAT(make(small().sequence(value)),
                refuses("sequence", "at least 1"));
  }
  for (const double value : {-0.1, 1.0, 2.0, std::nan("")}) {
    EXPECT_THAT(make(small().dropout(value)),
                refuses("dropout", "less than 1"));
    EXPECT_THAT(make(small().attention_dropout(value)),
                refuses("attention_dropout", "less than 1"));
  }
  EXPECT_THAT(make(small().width(18)),
              refuses("width", "multiple of heads (4)"));
  EXPECT_THAT(make(small().width(15).heads(3)), refuses("width", "even"));
  EXPECT_NO_THROW(
      transformer(small().width(15).heads(3).positions(Positions::kLearned)));
}

TEST(TransformerTest, NamesTheInputThatIsNotAllowed) {
  Sequential model = transformer(small());
  const auto run = [&](const Tensor& input) {
    return [&model, input] { model->forward(input); };
  };
  EXPECT_THAT(run(torch::zeros({2, 3})), refuses("dtype", "int64 or int32"));
  EXPECT_THAT(run(torch::zeros({3}, torch::kLong)),
              refuses("[3]", "[batch, length]"));
  for (const int64_t length : {0, 13}) {
    EXPECT_THAT(run(torch::zeros({2, length}, torch::kLong)),
                refuses("length", "1 to 12"));
  }
  for (const int64_t token : {-1, 50}) {
    EXPECT_THAT(run(torch::full({2, 3}, token, torch::kLong)),
                refuses("tokens must be 0 to 49", std::to_string(token)));
  }
}

}  // namespace
}  // namespace gpipe::models
