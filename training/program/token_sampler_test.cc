#include "training/program/token_sampler.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace gpipe::train_program {
namespace {

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

std::string error_of(const SamplingOptions& options, const at::Tensor& logits) {
  try {
    TokenSampler(options, 0).next(logits);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(TokenSamplerTest, ErrorsHaveTheNumbers) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(error_of({-1, 0, 1}, logits()), "--temperature=-1"));
  EXPECT_TRUE(has(error_of({NAN, 0, 1}, logits()), "--temperature=nan"));
  EXPECT_TRUE(has(error_of({1, -3, 1}, logits()), "--top_k=-3"));
  EXPECT_TRUE(has(error_of({1, 0, 0}, logits()), "--top_p=0"));
  EXPECT_TRUE(has(error_of({1, 0, 1.5}, logits()), "--top_p=1.5"));
  EXPECT_TRUE(has(error_of({}, at::tensor({1.f, NAN})),
                  "the largest of 2 logits is nan"));
  EXPECT_TRUE(has(error_of({}, at::tensor({1.f, INFINITY})), "is inf"));
  EXPECT_TRUE(has(error_of({}, at::tensor({-INFINITY})), "is -inf"));
}

}  // namespace
}  // namespace gpipe::train_program
