#include "training/program/generate.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/testing/ranks.h"
#include "models/exported/exported.h"
#include "models/lora.h"
#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "training/program/run.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::argument;
using gpipe::testing::new_folder;
using gpipe::testing::RankProgramEntry;
using gpipe::testing::Ranks;
using gpipe::testing::set_launch_environment;
using gpipe::testing::value_error_of;
using gpipe::testing::world_options;
using ::testing::HasSubstr;

// ---- The inputs of a model

using Sizes = std::vector<std::optional<int64_t>>;

ExportedTensor tensor(const std::string& name, c10::ScalarType dtype,
                      const Sizes& sizes, int64_t largest = 8) {
  ExportedTensor result{name, dtype, sizes, "", {}};
  for (const auto& each : sizes) {
    result.largest.push_back(each.value_or(largest));
  }
  return result;
}

const Sizes kAny = {std::nullopt, std::nullopt};

ExportedSignature signature(std::vector<ExportedTensor> inputs) {
  ExportedSignature result;
  result.inputs = std::move(inputs);
  result.outputs = {
      tensor("logits", at::kFloat, {std::nullopt, std::nullopt, 5})};
  return result;
}

ExportedSignature with_cache(std::optional<int64_t> tokens) {
  ExportedSignature result =
      signature({tensor("input_ids", at::kLong, {1, tokens}),
                 tensor("cache_position", at::kLong, {tokens})});
  result.state = {tensor("length", at::kLong, {}),
                  tensor("keys", at::kFloat, {1, 2, 12, 4}),
                  tensor("values", at::kFloat, {1, 2, 10, 4}),
                  tensor("recurrence", at::kFloat, {1, 2, 4, 4})};
  for (const int k : {1, 2}) result.state[k].changed_in_part = true;
  return result;
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_EQ(found.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(found, expected)) << found;
}

at::Tensor row(const std::vector<int64_t>& values) {
  return at::tensor(values).unsqueeze(0);
}

TEST(TokenInputsTest, AWindowOfAnyLengthHasAllTokens) {
  const TokenInputs inputs(signature({tensor("ids", at::kLong, kAny)}));
  EXPECT_FALSE(inputs.has_cache());
  EXPECT_EQ(inputs.limit(), 8);
  const auto call = inputs.next({4, 2, 3}, 2);
  expect_equal(call.sample.input, row({4, 2, 3}));
  EXPECT_TRUE(call.sample.further.empty());
  EXPECT_EQ(call.tokens, 3);
  EXPECT_EQ(call.last, 2);
}

TEST(TokenInputsTest, AWindowOfAFixedLengthIsPaddedAtItsEnd) {
  const TokenInputs inputs(
      signature({tensor("ids", at::kLong, {1, 4}),
                 tensor("position_ids", at::kLong, {1, 4}),
                 tensor("attention_mask", at::kLong, {1, 4})}));
  EXPECT_EQ(inputs.limit(), 4);
  const auto call = inputs.next({4, 2}, 0);
  expect_equal(call.sample.input, row({4, 2, 0, 0}));
  expect_equal(call.sample.further.at(0), row({0, 1, 2, 3}));
  expect_equal(call.sample.further.at(1), row({1, 1, 0, 0}));
  EXPECT_EQ(call.tokens, 2);
  EXPECT_EQ(call.last, 1);
}

TEST(TokenInputsTest, AMaskOfFourDimensionsIsCausal) {
  for (const c10::ScalarType dtype : {at::kBool, at::kFloat}) {
    const TokenInputs inputs(
        signature({tensor("ids", at::kLong, kAny),
                   tensor("attention_mask", dtype,
                          {std::nullopt, 1, std::nullopt, std::nullopt})}));
    const at::Tensor mask = inputs.next({4, 2}, 0).sample.further.at(0);
    const at::Tensor floats =
        at::tensor({0.f, -INFINITY, 0.f, 0.f}).view({1, 1, 2, 2});
    expect_equal(mask, dtype == at::kBool ? floats == 0 : floats);
  }
}

TEST(TokenInputsTest, AModelWithACacheReadsEachTokenOnce) {
  const TokenInputs one(with_cache(1));
  EXPECT_TRUE(one.has_cache());
  EXPECT_EQ(one.limit(), 10);  // of the shorter cache
  auto call = one.next({4, 2, 3}, 1);
  expect_equal(call.sample.input, row({2}));
  expect_equal(call.sample.further.at(0), at::tensor({int64_t{1}}));
  EXPECT_EQ(call.tokens, 2);
  EXPECT_EQ(call.last, 0);

  const TokenInputs any(with_cache(std::nullopt));
  call = any.next({4, 2, 3}, 1);
  expect_equal(call.sample.input, row({2, 3}));
  expect_equal(call.sample.further.at(0), at::tensor({1, 2}, at::kLong));
  EXPECT_EQ(call.tokens, 3);
  EXPECT_EQ(call.last, 1);
}

// The state is a running average of activations, for example.
TEST(TokenInputsTest, AModelWhoseStateStaysReadsAllTokens) {
  ExportedSignature program = signature({tensor("ids", at::kLong, kAny)});
  program.state = {tensor("average", at::kFloat, {4})};
  EXPECT_TRUE(TokenInputs(program).has_cache());
  const TokenInputs inputs(program, /*with_state=*/false);
  EXPECT_FALSE(inputs.has_cache());
  EXPECT_EQ(inputs.limit(), 8);
  const auto call = inputs.next({4, 2, 3}, 2);
  expect_equal(call.sample.input, row({4, 2, 3}));
  EXPECT_EQ(call.tokens, 3);
}

TEST(TokenInputsTest, AMaskBesideACacheShowsTheTokensBefore) {
  const auto masks = [](std::optional<int64_t> keys, c10::ScalarType dtype) {
    ExportedSignature program = with_cache(std::nullopt);
    program.inputs.push_back(tensor("attention_mask", at::kLong, {1, keys}));
    program.inputs.push_back(
        tensor("attention_mask", dtype, {1, 1, std::nullopt, keys}));
    const TokenInputs inputs(program);
    EXPECT_EQ(inputs.limit(), keys.value_or(8));
    return inputs.next({4, 2, 3}, 1).sample.further;
  };
  const auto any = masks(std::nullopt, at::kLong);
  expect_equal(any.at(1), row({1, 1, 1}));
  expect_equal(any.at(2),
               at::tensor({1, 1, 0, 1, 1, 1}, at::kLong).view({1, 1, 2, 3}));
  const auto fixed = masks(5, at::kFloat);
  expect_equal(fixed.at(1), row({1, 1, 1, 0, 0}));
  const float no = -INFINITY;
  expect_equal(fixed.at(2), at::tensor({0.f, 0.f, no, no, no,  //
                                        0.f, 0.f, 0.f, no, no})
                                .view({1, 1, 2, 5}));
}

TEST(TokenInputsTest, AModelOfModelsTakesUpToItsWindow) {
  const TokenInputs inputs(3);
  EXPECT_EQ(inputs.limit(), 3);
  expect_equal(inputs.next({1, 2, 0}, 0).sample.input, row({1, 2, 0}));
}

TEST(TokenInputsTest, ErrorsHaveTheNumbers) {
  const auto expect = [](const ExportedSignature& wrong,
                         const std::string& part) {
    EXPECT_THAT(value_error_of([&] { TokenInputs{wrong}; }), HasSubstr(part));
  };
  expect(signature({tensor("x", at::kFloat, kAny)}), "knows no value for x");
  expect(signature({tensor("a", at::kLong, kAny),
                    tensor("type_ids", at::kLong, kAny)}),
         "knows no value for type_ids");
  expect(signature({tensor("cache_position", at::kLong, {std::nullopt})}),
         "generation needs tokens");
  expect(signature({tensor("ids", at::kLong, {4, std::nullopt})}),
         "export it for 1 row");
  expect(with_cache(3), "the program takes 3 tokens");
  ExportedSignature classes = signature({tensor("ids", at::kLong, kAny)});
  classes.outputs = {tensor("classes", at::kFloat, {std::nullopt, 5})};
  expect(classes, "generation needs tokens");
  EXPECT_NE(value_error_of([] {
              TokenInputs(2).next({1, 2, 3}, 0);
            }).find("the sequence has 3 tokens, but the model takes at most 2"),
            std::string::npos);
}

// ---- The next token

// Logits of the probabilities 1/8, 1/2, 1/8, 1/4.
at::Tensor logits() { return at::tensor({0.125, 0.5, 0.125, 0.25}).log() + 3; }

// Returns how often each token is drawn.
std::vector<int64_t> counts(const SamplingOptions& options, int64_t draws) {
  TokenSampler sampler(options, 5);
  std::vector<int64_t> result(4);
  for (int64_t k = 0; k < draws; ++k) ++result[sampler.next(logits())];
  return result;
}

std::set<int64_t> drawn(const SamplingOptions& options) {
  std::set<int64_t> tokens;
  const auto each = counts(options, 1000);
  for (int64_t k = 0; k < 4; ++k) {
    if (each[k] > 0) tokens.insert(k);
  }
  return tokens;
}

TEST(TokenSamplerTest, TemperatureZeroTakesTheMostLikelyToken) {
  TokenSampler sampler({}, 0);
  EXPECT_EQ(sampler.next(logits()), 1);
  // The first one of equal logits.
  EXPECT_EQ(sampler.next(at::tensor({1., 7., 2., 7.})), 1);
  EXPECT_EQ(sampler.next(at::tensor({1., 2., 3.}).to(at::kHalf)), 2);
}

TEST(TokenSamplerTest, DrawsTheNumbersOfTheSoftmax) {
  // The number u of the generator falls into the sums 1/8, 5/8, 6/8, 1.
  TokenSampler sampler({1, 0, 1}, 5);
  data::Random random(5);
  for (int k = 0; k < 1000; ++k) {
    const double u = random.uniform();
    const int64_t expected = u < 0.125 ? 0 : u < 0.625 ? 1 : u < 0.75 ? 2 : 3;
    ASSERT_EQ(sampler.next(logits()), expected) << u;
  }
}

TEST(TokenSamplerTest, TheTemperatureDividesTheLogits) {
  // Weights 1/64, 1/4, 1/64, 1/16, of which the sum is 22/64.
  TokenSampler sampler({0.5, 0, 1}, 5);
  data::Random random(5);
  for (int k = 0; k < 1000; ++k) {
    const double u = random.uniform() * 22;
    const int64_t expected = u < 1 ? 0 : u < 17 ? 1 : u < 18 ? 2 : 3;
    ASSERT_EQ(sampler.next(logits()), expected) << u;
  }
}

TEST(TokenSamplerTest, TopKKeepsTheMostLikelyTokens) {
  EXPECT_EQ(drawn({1, 1, 1}), (std::set<int64_t>{1}));
  EXPECT_EQ(drawn({1, 2, 1}), (std::set<int64_t>{1, 3}));
  // Token 0 is as likely as token 2, and comes first.
  EXPECT_EQ(drawn({1, 3, 1}), (std::set<int64_t>{0, 1, 3}));
  EXPECT_EQ(drawn({1, 9, 1}), (std::set<int64_t>{0, 1, 2, 3}));
}

TEST(TokenSamplerTest, TopPKeepsTokensUntilTheyAddUpToIt) {
  EXPECT_EQ(drawn({1, 0, 0.49}), (std::set<int64_t>{1}));
  EXPECT_EQ(drawn({1, 0, 0.51}), (std::set<int64_t>{1, 3}));
  EXPECT_EQ(drawn({1, 0, 0.74}), (std::set<int64_t>{1, 3}));
  EXPECT_EQ(drawn({1, 0, 0.76}), (std::set<int64_t>{0, 1, 3}));
  // Of the two tokens of top_k, 1 has 2/3.
  EXPECT_EQ(drawn({1, 2, 0.6}), (std::set<int64_t>{1}));
  EXPECT_EQ(drawn({1, 2, 0.7}), (std::set<int64_t>{1, 3}));
}

TEST(TokenSamplerTest, ATokenWithoutProbabilityIsNotDrawn) {
  TokenSampler sampler({1, 0, 1}, 5);
  for (int k = 0; k < 100; ++k) {
    ASSERT_EQ(sampler.next(at::tensor({-INFINITY, 0.f, -INFINITY})), 1);
  }
}

TEST(TokenSamplerTest, ErrorsHaveTheNumbers) {
  const auto expect = [](const SamplingOptions& options,
                         const at::Tensor& wrong, const std::string& part) {
    EXPECT_THAT(value_error_of([&] { TokenSampler(options, 0).next(wrong); }),
                HasSubstr(part));
  };
  expect({-1, 0, 1}, logits(), "--temperature=-1");
  expect({NAN, 0, 1}, logits(), "--temperature=nan");
  expect({1, -3, 1}, logits(), "--top_k=-3");
  expect({1, 0, 0}, logits(), "--top_p=0");
  expect({1, 0, 1.5}, logits(), "--top_p=1.5");
  expect({0, 2, 1}, logits(), "--top_k=2");
  expect({0, 0, 0.5}, logits(), "--top_p=0.5");
  expect({}, at::tensor({1.f, NAN}), "the largest of 2 logits is nan");
  expect({}, at::tensor({1.f, INFINITY}), "is inf");
  expect({}, at::tensor({-INFINITY}), "is -inf");
}

// ---- Sequences

// A model of 10 tokens. The most likely token after some tokens is the last
// digit of their sum plus 1; the next ones have half of its probability each.
struct SumModel {
  std::vector<std::string> calls;  // the sequences of each forward

  TokenModel model(int64_t limit) {
    TokenModel result{TokenInputs(limit), 10, nullptr, nullptr};
    result.forward = [this](const std::vector<Sample>& parts,
                            const std::vector<int64_t>& sequences) {
      std::string call;
      std::vector<at::Tensor> outputs;
      for (std::size_t k = 0; k < parts.size(); ++k) {
        call += std::to_string(sequences[k]) + " ";
        const at::Tensor sums = parts[k].input.cumsum(1) + 1;
        at::Tensor logits = at::zeros({1, sums.size(1), 10});
        for (int64_t t = 0; t < sums.size(1); ++t) {
          logits[0][t][sums[0][t].item<int64_t>() % 10] = std::log(2.);
        }
        outputs.push_back(logits);
      }
      calls.push_back(call);
      return std::make_optional(std::move(outputs));
    };
    result.exchange = [](const std::string& mine) {
      return std::vector<std::string>{mine};
    };
    return result;
  }
};

GenerateOptions options_of(int64_t max_tokens, int64_t in_flight = 4) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.in_flight = in_flight;
  return options;
}

TEST(GenerateTest, ContinuesEachPrompt) {
  SumModel sums;
  EXPECT_EQ(generate(sums.model(8), {{1, 2}, {5}}, options_of(3)),
            (std::vector<Tokens>{{1, 2, 4, 8, 6}, {5, 6, 2, 4}}));
  EXPECT_EQ(sums.calls, (std::vector<std::string>{"0 1 ", "0 1 ", "0 1 "}));
}

TEST(GenerateTest, ANewSequenceBeginsWhenAnotherHasEnded) {
  SumModel sums;
  GenerateOptions options = options_of(3, 2);
  options.ends = {4};
  EXPECT_EQ(generate(sums.model(8), {{1, 2}, {5}, {9}, {0}}, options),
            (std::vector<Tokens>{
                {1, 2, 4}, {5, 6, 2, 4}, {9, 0, 0, 0}, {0, 1, 2, 4}}));
  EXPECT_EQ(sums.calls, (std::vector<std::string>{"0 1 ", "1 2 ", "1 2 ",
                                                  "2 3 ", "3 ", "3 "}));
}

TEST(GenerateTest, ASequenceEndsAfterAListOfTokensOfItsOwn) {
  SumModel sums;
  GenerateOptions options = options_of(5);
  options.stops = {{4, 8}, {1, 2}};
  // The 1, 2 of the prompt do not end it.
  EXPECT_EQ(generate(sums.model(8), {{1, 2}, {0}}, options),
            (std::vector<Tokens>{{1, 2, 4, 8}, {0, 1, 2}}));
}

TEST(GenerateTest, DrawsDoNotDependOnOtherSequences) {
  SumModel sums;
  GenerateOptions options = options_of(7);
  options.sampling.temperature = 1;
  options.seed = 3;
  const std::vector<Tokens> prompts{{1}, {1}, {1}, {1}, {1}};
  const auto all = generate(sums.model(8), prompts, options);
  EXPECT_NE(all[0], all[1]);
  for (const int64_t in_flight : {1, 2, 5}) {
    options.in_flight = in_flight;
    EXPECT_EQ(generate(sums.model(8), prompts, options), all) << in_flight;
  }
  options.seed = 4;
  EXPECT_NE(generate(sums.model(8), prompts, options), all);
}

TEST(GenerateTest, ALongSequenceSlides) {
  SumModel sums;
  GenerateOptions options = options_of(4);
  options.slides = true;
  // The model sees the last two tokens.
  EXPECT_EQ(generate(sums.model(2), {{1, 2, 3}}, options),
            (std::vector<Tokens>{{1, 2, 3, 6, 0, 7, 8}}));
  options.max_tokens = std::numeric_limits<int64_t>::max();
  options.ends = {0};
  EXPECT_EQ(generate(sums.model(2), {{1, 2, 3}}, options),
            (std::vector<Tokens>{{1, 2, 3, 6, 0}}));
}

TEST(GenerateTest, AllProcessesUseTheTokensOfTheOneThatDrew) {
  SumModel sums;
  TokenModel model = sums.model(8);
  model.forward = [](const auto&, const auto&) { return std::nullopt; };
  model.exchange = [](const std::string& mine) {
    return std::vector<std::string>{mine, "3 4 ", ""};
  };
  EXPECT_EQ(generate(model, {{1}, {2}}, options_of(2)),
            (std::vector<Tokens>{{1, 3, 3}, {2, 4, 4}}));
}

TEST(GenerateTest, TheModelForgetsTheSequencesAtTheEnd) {
  SumModel sums;
  TokenModel model = sums.model(8);
  std::size_t calls = 0;  // before each forget()
  model.forget = [&] { calls = sums.calls.size(); };
  generate(model, {{1}}, options_of(2));
  EXPECT_EQ(calls, 2u);
  model.exchange = [](const std::string&) {
    return std::vector<std::string>();
  };
  EXPECT_THROW(generate(model, {{1}}, options_of(2)), c10::Error);
  EXPECT_EQ(calls, 3u);
}

TEST(GenerateTest, ErrorsHaveTheNumbers) {
  const auto expect = [](const std::vector<Tokens>& prompts,
                         const GenerateOptions& options,
                         const std::string& part) {
    SumModel sums;
    EXPECT_THAT(
        value_error_of([&] { generate(sums.model(8), prompts, options); }),
        HasSubstr(part));
    EXPECT_TRUE(sums.calls.empty());
  };
  expect({{1}}, options_of(0), "--max_tokens=0");
  expect({{1}}, options_of(1, 0), "--in_flight=0");
  expect({{1}, {}}, options_of(1), "prompt 1 is empty");
  expect({{1, 10}}, options_of(1),
         "prompt 0 has the token 10, but the model has 10 tokens, 0 to 9");
  expect({{-1}}, options_of(1), "has the token -1");
  expect({Tokens(9, 1)}, options_of(1),
         "prompt 0 has 9 tokens, but the model takes at most 8");
  expect({{1, 2}}, options_of(8),
         "prompt 0 has 2 tokens and --max_tokens=8 follow, but the model takes "
         "at most 8; use --max_tokens=7 or less");
  GenerateOptions options = options_of(1);
  options.stops = {{}};
  expect({{1}}, options, "--stop has an empty list");
  options.stops = {{1}, {2, -3}};
  expect({{1}}, options,
         "--stop has the token -3, but the model has 10 tokens, 0 to 9");
  options = options_of(1);
  options.ends = {9, 10};
  expect({{1}}, options,
         "--eos has the token 10, but the model has 10 tokens, 0 to 9");
  options = options_of(1);
  options.sampling.top_p = 2;
  expect({{1}}, options, "--top_p=2");
}

// ---- The program examples/generate.cc

std::string file(const std::string& name) {
  return "models/exported/testdata/" + name;
}

Options options_of(const std::string& model, int64_t partitions) {
  Options options;
  options.model = file(model + ".pt2");
  options.partitions = partitions;
  options.devices = "cpu,cpu,cpu";
  options.threads = 1;
  return options;
}

// The prompts of make.py, and the twelve tokens that follow each.
GenerateRun pythons_run() {
  GenerateRun run;
  run.prompt_tokens = "1,2,3; 7;12,0,5,5,4";
  run.options.max_tokens = 12;
  return run;
}
const std::vector<std::string>& pythons_lines() {
  static const auto& lines = *new std::vector<std::string>{
      "1 2 3 9 12 4 7 3 7 10 4 7 3 8 5", "7 3 3 4 4 3 4 7 3 9 7 3 7",
      "12 0 5 5 4 10 11 7 3 2 11 4 4 3 7 4 3"};
  return lines;
}

std::vector<std::string> lines_of(const Options& options,
                                  const GenerateRun& run) {
  std::vector<std::string> lines;
  run_generate(
      options, run, [&](const std::string& line) { lines.push_back(line); },
      [](const std::string&) {});
  return lines;
}

TEST(GenerateRunTest, TokensArePythonsWithAndWithoutACache) {
  for (const char* model : {"window", "stepped", "prefilled"}) {
    for (const int64_t partitions : {1, 2, 3}) {
      for (const int64_t in_flight : {1, 2, 3}) {
        GenerateRun run = pythons_run();
        run.options.in_flight = in_flight;
        EXPECT_EQ(lines_of(options_of(model, partitions), run), pythons_lines())
            << model << " " << partitions << " " << in_flight;
      }
    }
  }
}

TEST(GenerateRunTest, DrawnTokensDoNotDependOnTheCacheOrThePartitions) {
  GenerateRun run = pythons_run();
  run.options.sampling.temperature = 2;
  run.samples = 2;
  const auto lines = lines_of(options_of("window", 1), run);
  EXPECT_EQ(lines.size(), 6U);
  EXPECT_NE(lines[0], lines[1]);
  run.options.in_flight = 5;
  EXPECT_EQ(lines_of(options_of("stepped", 2), run), lines);
}

TEST(GenerateRunTest, SequencesEndAtEosAndStop) {
  GenerateRun run = pythons_run();
  run.eos = "9,11";
  run.stop = "4,3; 8 8";
  EXPECT_EQ(
      lines_of(options_of("stepped", 1), run),
      (std::vector<std::string>{"1 2 3 9", "7 3 3 4 4 3", "12 0 5 5 4 10 11"}));
}

TEST(GenerateRunTest, PromptsComeFromAFile) {
  const std::string path = new_folder() + "prompts.txt";
  std::ofstream(path) << "1 2 3\n7\n\n12,0,5,5,4\n";
  GenerateRun run = pythons_run();
  run.prompt_tokens = "";
  run.prompts = path;
  EXPECT_EQ(lines_of(options_of("window", 1), run), pythons_lines());
}

TEST(GenerateRunTest, WeightsComeFromAFile) {
  const std::string path = new_folder() + "weights.safetensors";
  StateDict dict = load_exported(file("window.pt2")).state_dict();
  dict["model.head.weight"] = dict["model.head.weight"].zero_();
  dict["model.head.bias"].zero_()[6] = 1;  // so token 6 always follows
  write_safetensors(path, dict);
  Options options = options_of("stepped", 2);
  options.weights = path;
  GenerateRun run;
  run.prompt_tokens = "1";
  run.options.max_tokens = 3;
  EXPECT_EQ(lines_of(options, run), std::vector<std::string>{"1 6 6 6"});
}

TEST(GenerateRunTest, AnAdapterIsAddedToTheWeights) {
  const auto lora = LoraOptions().rank(2).targets({"head"}).wrapper("model");
  torch::manual_seed(3);
  ExportedModel model = add_lora(load_exported(file("window.pt2")), lora);
  for (const auto& item : lora_state_dict(*model.layers)) {
    item.value().normal_();  // B is 0 in a new adapter
  }
  const std::string folder = new_folder();
  save_lora(folder + "adapter", *model.layers, lora);
  merge_lora(*model.layers);
  write_safetensors(folder + "merged.safetensors", model.state_dict());

  Options merged = options_of("window", 1);
  merged.weights = folder + "merged.safetensors";
  const auto lines = lines_of(merged, pythons_run());
  EXPECT_NE(lines, pythons_lines());
  for (const char* name : {"window", "stepped"}) {
    Options adapted = options_of(name, 2);
    adapted.adapter = folder + "adapter";
    adapted.lora_wrapper = "model";
    EXPECT_EQ(lines_of(adapted, pythons_run()), lines) << name;
  }
}

const RankProgramEntry kGenerate("generate", [] {
  set_launch_environment();
  Options options = options_of(argument("model"), 1);
  options.distributed = true;
  options.timeout = 60;
  GenerateRun run = pythons_run();
  if (argument("differ") == "true")
    run.options.max_tokens -= world_options().rank;
  run_generate(
      options, run, [](const std::string& line) { std::cout << line << "\n"; },
      [](const std::string&) {});
  return 0;
});

TEST(GenerateRunTest, ProcessesGenerateTogether) {
  std::string expected;
  for (const std::string& each : pythons_lines()) expected += each + "\n";
  for (const char* model : {"window", "stepped"}) {
    Ranks ranks("generate", 2, {{"model", model}});
    const auto results = ranks.wait();
    testing::expect_all_ok(results);
    EXPECT_EQ(results[0].out, expected) << model;
    EXPECT_EQ(results[1].out, "") << model;
  }
}

TEST(GenerateRunTest, AFlagThatDiffersIsNamedByAllProcesses) {
  Ranks ranks("generate", 2, {{"model", "window"}, {"differ", "true"}});
  for (const auto& each : ranks.wait()) {
    EXPECT_EQ(each.exit.code, 1);
    EXPECT_NE(each.err.find("--max_tokens"), std::string::npos) << each.err;
  }
}

TEST(GenerateRunTest, ATextContinuesWithTheModelThatWasTrainedOnIt) {
  const std::string folder = new_folder();
  Options options = small_options("transformer");
  options.data_dir = folder + "text.txt";
  std::string text;
  for (int k = 0; k < 300; ++k) text += "abcd";
  std::ofstream(options.data_dir) << text;
  options.length = 12;
  options.steps = 60;
  options.lr = 0.01;
  options.run_dir = folder + "run";
  ASSERT_EQ(run_here(options).code, kDone);

  options.weights = folder + "run/step-000000000060/model.safetensors";
  options.run_dir = "";
  GenerateRun run;
  run.prompt = "cd";
  run.options.max_tokens = 30;  // more than the window
  EXPECT_EQ(lines_of(options, run),
            std::vector<std::string>{"cdabcdabcdabcdabcdabcdabcdabcdab"});
  run.stop = "cda";
  EXPECT_EQ(lines_of(options, run), std::vector<std::string>{"cdabcda"});
}

TEST(GenerateRunTest, ATextContinuesThatIsShorterThanAWindowForTraining) {
  Options options = small_options("transformer");
  options.data_dir = new_folder() + "text.txt";
  std::string text;
  for (int k = 0; k < 20; ++k) text += "ab\n";
  std::ofstream(options.data_dir) << text;
  GenerateRun run;
  run.prompt = "ab";
  run.options.max_tokens = 3;
  const auto lines = lines_of(options, run);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].size(), 5U);
  options.steps = 1;
  EXPECT_THAT(value_error_of([&] { run_here(options); }),
              HasSubstr("(its part for testing): has 6 tokens; windows of 12 "
                        "need at least 13"));
  options.bucket = 4;
  EXPECT_EQ(run_here(options).code, kDone);
}

TEST(GenerateRunTest, AProgramWithMoreOutputsWritesCharactersOfItsText) {
  Options options = options_of("letters", 1);  // 16 outputs
  options.data_dir = new_folder() + "text.txt";
  std::string text;
  for (int k = 0; k < 700; ++k) text += "abc";
  std::ofstream(options.data_dir) << text;
  GenerateRun run;
  run.prompt = "ab";
  run.samples = 4;
  run.options.max_tokens = 20;
  run.options.sampling.temperature = 1;
  for (const std::string& line : lines_of(options, run)) {
    EXPECT_EQ(line.size(), 22U);
    EXPECT_EQ(line.find_first_not_of("abc"), std::string::npos) << line;
  }
  const auto error_with = [&](const std::string& prompt) {
    run.prompt = prompt;
    return value_error_of([&] { lines_of(options, run); });
  };
  EXPECT_EQ(error_with(""),
            "there is no prompt; use --prompt, --prompt_tokens or --prompts");
  EXPECT_EQ(error_with("ax"),
            "--prompt=ax: the character 'x' is not in the text of --data_dir");
  EXPECT_EQ(error_with("a\xc3\xa9"),
            "--prompt=a\xc3\xa9: the byte 0xc3 is not in the text of "
            "--data_dir");
}

TEST(GenerateRunTest, ErrorsSayWhatToDo) {
  const auto expect = [](const Options& options, const GenerateRun& run,
                         const std::string& part) {
    EXPECT_THAT(value_error_of([&] { lines_of(options, run); }),
                HasSubstr(part));
  };
  GenerateRun run;
  expect(options_of("window", 1), run, "there is no prompt");
  run.prompt = "a";
  expect(options_of("window", 1), run, "use --prompt_tokens");
  run.prompt = "";
  run.prompt_tokens = "1,x";
  expect(options_of("window", 1), run, "'x' is no number of a token");
  run.prompt_tokens = "1,,2";
  expect(options_of("window", 1), run,
         "a number is missing beside a comma of '1,,2'");
  run.prompt_tokens = "";
  run.prompts = new_folder();
  expect(options_of("window", 1), run,
         "--prompts=" + run.prompts + " cannot be read");
  run.prompts = "";
  run.prompt_tokens = "1,13";
  expect(options_of("window", 1), run,
         "prompt 0 has the token 13, but the model has 13 tokens, 0 to 12");
  run.prompt_tokens = "1;1,13";
  run.samples = 2;
  run.options.max_tokens = 24;
  expect(options_of("window", 1), run, "prompt 1 has the token 13");
  run.samples = 1;
  run.prompt_tokens = "1";
  for (const char* model : {"window", "stepped"}) {
    run.options.max_tokens = 25;
    expect(options_of(model, 1), run, "use --max_tokens=24 or less");
  }
  run.options.max_tokens = 24;
  EXPECT_EQ(lines_of(options_of("window", 1), run),
            lines_of(options_of("stepped", 1), run));
  run.samples = 0;
  expect(options_of("window", 1), run, "--samples=0");
  run.samples = 1;
  expect(options_of("tiny", 1), run, "generation knows no value for");
  Options options = options_of("window", 1);
  options.balance = "1,1";
  expect(options, run, "--balance=1,1 is 2 partitions");
  options = options_of("window", 1);
  options.model = "transformer";
  expect(options, run, "needs --data_dir");
  options = options_of("window", 1);
  options.precision = "bfloat16";
  expect(options, run, "--precision=bfloat16 converts the weights");
}

}  // namespace
}  // namespace gpipe::train_program
