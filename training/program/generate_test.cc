#include "training/program/generate.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::train_program {
namespace {

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
  std::vector<int64_t> ended;
  EXPECT_EQ(
      generate(sums.model(8), {{1, 2}, {5}, {9}, {0}}, options,
               [&](int64_t index, const Tokens&) { ended.push_back(index); }),
      (std::vector<Tokens>{
          {1, 2, 4}, {5, 6, 2, 4}, {9, 0, 0, 0}, {0, 1, 2, 4}}));
  EXPECT_EQ(sums.calls, (std::vector<std::string>{"0 1 ", "1 2 ", "1 2 ",
                                                  "2 3 ", "3 ", "3 "}));
  EXPECT_EQ(ended, (std::vector<int64_t>{0, 1, 2, 3}));
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

TEST(GenerateTest, ErrorsHaveTheNumbers) {
  const auto expect = [](const std::vector<Tokens>& prompts,
                         const GenerateOptions& options,
                         const std::string& part) {
    SumModel sums;
    std::string text;
    try {
      generate(sums.model(8), prompts, options);
    } catch (const c10::ValueError& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_NE(text.find(part), std::string::npos) << text;
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
  options = options_of(1);
  options.sampling.top_p = 2;
  expect({{1}}, options, "--top_p=2");
}

}  // namespace
}  // namespace gpipe::train_program
