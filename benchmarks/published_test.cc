#include "benchmarks/published.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace gpipe::benchmarks {
namespace {

// Half of the last digit of the tables.
constexpr double kRounding = 0.00005 + 1e-9;

void expect_equal(const Comparison& comparison) {
  EXPECT_FALSE(comparison.figures.empty());
  for (const PublishedFigure& figure : comparison.figures) {
    EXPECT_NEAR(figure.ours, figure.theirs, 1e-9)
        << comparison.title << ": " << figure.setting << ", " << figure.name;
  }
}

TEST(PublishedTest, FormulasOfZeroBubbleAreExact) {
  expect_equal(zero_bubble_formulas());
}

TEST(PublishedTest, FormulasOfDualPipeAreExact) {
  expect_equal(dual_pipe_formulas());
}

TEST(PublishedTest, ControllableMemoryIsThatOfItsAuthorsGenerator) {
  expect_equal(controllable_memory());
}

TEST(PublishedTest, ZeroBubblesRatesHaveAllPublishedDigits) {
  const Comparison comparison = zero_bubble_rates();
  EXPECT_EQ(comparison.figures.size(), 48u);
  for (const PublishedFigure& figure : comparison.figures) {
    const double tolerance = figure.name == "1F1B-I" ? 0.004 : kRounding;
    EXPECT_NEAR(figure.ours, figure.theirs, tolerance)
        << figure.setting << ", " << figure.name;
  }
}

// With f = 1, b = 2 and recomputes before the gradient arrives, m micro-batches
// on K partitions take (m + K - 1)(f + b) + m f, each 1 / (m K) of the model.
TEST(PublishedTest, GPipesSpeedUpsFollowFromTheBubble) {
  const auto step = [](double partitions) {
    return ((31 + partitions) * 3 + 32) / (32 * partitions);
  };
  for (const PublishedFigure& figure : gpipe_gpus().figures) {
    const double partitions = figure.setting[0] - '0';
    EXPECT_NEAR(figure.ours, step(2) / step(partitions), 1e-9)
        << figure.setting;
  }
}

TEST(PublishedTest, AComparisonSaysWhatDeviates) {
  std::ostringstream text;
  text << Comparison{
      "T", "S", "A", "B", {{"x", "y", 1, 1.25}, {"z", "", 2, 2}}};
  EXPECT_NE(text.str().find("largest deviation: 0.2500\n  why: B"),
            std::string::npos)
      << text.str();
}

}  // namespace
}  // namespace gpipe::benchmarks
