#include "benchmarks/papers/transformer_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

TEST(TransformerModelTest, BalancesAreEvenAndComplete) {
  EXPECT_THAT(even_balance(3, 1), ElementsAre(9));
  EXPECT_THAT(even_balance(5, 2), ElementsAre(7, 6));
  EXPECT_THAT(even_balance(4, 4), ElementsAre(3, 2, 2, 4));
  const auto balance = even_balance(1663, 128);
  EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), int64_t{0}),
            2 * 1663 + 3);
}

TEST(TransformerModelTest, BlocksComeApartForMorePartitions) {
  EXPECT_THAT(even_balance(4, 8), ElementsAre(2, 1, 1, 1, 1, 1, 1, 3));
  EXPECT_THAT(even_balance(4, 5), ElementsAre(3, 2, 2, 1, 3));
}

// Table 1 of GPipe: 785.8M parameters for L = 13.
TEST(TransformerModelTest, ModelsAreThoseOfThePaper) {
  Experiment experiment;
  experiment.size = size_of(13, kGPipeShape);
  EXPECT_THAT(experiment.size, ElementsAre(13, 2048, 1024, 32000));
  const MetaGuard meta;
  const auto model = transformer_of(experiment);
  int64_t parameters = 0;
  for (const auto& tensor : model->parameters()) parameters += tensor.numel();
  EXPECT_EQ(parameters, 785765632);
  EXPECT_EQ(model->size(), 29U);
}

}  // namespace
}  // namespace gpipe::benchmarks
