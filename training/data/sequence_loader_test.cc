#include "training/data/sequence_loader.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "training/data/random.h"
#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using ::testing::HasSubstr;

// Returns sequences of these lengths. The tokens of sequence k are k, and the
// last one is the end token -1.
Sequences sequences_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> tokens;
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    tokens.insert(tokens.end(), lengths[k] - 1, static_cast<int64_t>(k));
    tokens.push_back(-1);
  }
  return {at::tensor(tokens, at::kLong), /*end=*/-1, /*longest=*/100};
}

// Lengths from 2 to 16, in no order.
const std::vector<int64_t> kLengths{9, 2, 16, 4, 3, 11, 2, 7, 5, 4, 13, 6};

int64_t padding_in(const TextWindows& part) {
  return part.targets.eq(kNoTarget).sum().item<int64_t>();
}

// Returns the tokens of the largest part.
int64_t largest(const std::vector<int64_t>& lengths,
                const std::vector<int64_t>& cut) {
  int64_t most = 0, end = 0;
  for (const int64_t rows : cut) {
    end += rows;
    most = std::max(most, rows * lengths[end - 1]);
  }
  return most;
}

// Returns the least possible size of the largest part, by trying all cuts.
int64_t least(const std::vector<int64_t>& lengths, int64_t begin,
              int64_t count) {
  const auto rows = static_cast<int64_t>(lengths.size());
  if (count == 1) return (rows - begin) * lengths.back();
  int64_t best = rows * lengths.back();
  for (int64_t end = begin + 1; end <= rows - count + 1; ++end) {
    best = std::min(best, std::max((end - begin) * lengths[end - 1],
                                   least(lengths, end, count - 1)));
  }
  return best;
}

TEST(CutByTokensTest, IsAsGoodAsTheBestOfAllCuts) {
  Random random(3);
  for (int64_t trial = 0; trial < 200; ++trial) {
    std::vector<int64_t> lengths(1 + random.below(9));
    for (int64_t& each : lengths) each = 1 + random.below(20);
    std::sort(lengths.begin(), lengths.end());
    const auto rows = static_cast<int64_t>(lengths.size());
    for (int64_t count = 1; count <= rows; ++count) {
      const auto cut = cut_by_tokens(lengths, count);
      ASSERT_EQ(static_cast<int64_t>(cut.size()), count);
      EXPECT_GE(*std::min_element(cut.begin(), cut.end()), 1);
      EXPECT_EQ(std::accumulate(cut.begin(), cut.end(), int64_t{0}), rows);
      EXPECT_EQ(largest(lengths, cut), least(lengths, 0, count));
    }
  }
}

TEST(CutByTokensTest, ShortRowsAreManyInAPart) {
  // 6 x 2, 3 x 4 and 1 x 12 tokens.
  EXPECT_EQ(cut_by_tokens({2, 2, 2, 2, 2, 2, 4, 4, 4, 12}, 3),
            (std::vector<int64_t>{6, 3, 1}));
}

TEST(SequenceLoaderTest, EachSequenceComesOncePerEpoch) {
  SequenceLoader loader(sequences_of(kLengths), 1, /*seed=*/5);
  std::vector<std::vector<int64_t>> epochs(3);
  // Mini-batches of 5 do not divide the 12 sequences.
  for (int64_t begin = 0; begin < 35; begin += 5) {
    const auto some = loader.indices(begin, begin + 5);
    for (int64_t k = 0; k < 5; ++k) {
      epochs[(begin + k) / 12].push_back(some[k]);
    }
  }
  for (int epoch = 0; epoch < 2; ++epoch) {
    ASSERT_EQ(epochs[epoch].size(), 12u);
    EXPECT_EQ(
        std::set<int64_t>(epochs[epoch].begin(), epochs[epoch].end()).size(),
        12u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(SequenceLoaderTest, PartsHaveEachSequenceOnceAndItsTokens) {
  SequenceLoader loader(sequences_of(kLengths), 4, 5);
  std::vector<int64_t> tokens(kLengths.size());
  for (const TextWindows& part : loader.parts(0, 12, 4)) {
    for (int64_t row = 0; row < part.targets.size(0); ++row) {
      const at::Tensor targets = part.targets[row];
      const auto index = targets[0].item<int64_t>();
      tokens[index] += targets.ne(kNoTarget).sum().item<int64_t>();
    }
  }
  EXPECT_EQ(tokens, kLengths);
}

// The sorted lengths are 2 2 3 4 4 5 6 7 9 11 13 16.
TEST(SequenceLoaderTest, PaddingIsThatOfTheLongestSequenceOfAPart) {
  SequenceLoader loader(sequences_of(kLengths), 1, 5);
  const auto parts = loader.parts(0, 12, 3);
  ASSERT_EQ(parts.size(), 3u);
  // 7 x 6, 3 x 11 and 2 x 16. With 8 rows the first would have 56 tokens, and
  // with 6 the second would have 44.
  EXPECT_EQ(parts[0].inputs.sizes(), (std::vector<int64_t>{7, 6}));
  EXPECT_EQ(parts[1].inputs.sizes(), (std::vector<int64_t>{3, 11}));
  EXPECT_EQ(parts[2].inputs.sizes(), (std::vector<int64_t>{2, 16}));
  EXPECT_EQ(padding_in(parts[0]), 7 * 6 - (2 + 2 + 3 + 4 + 4 + 5 + 6));
  EXPECT_EQ(padding_in(parts[1]), 3 * 11 - (7 + 9 + 11));
  EXPECT_EQ(padding_in(parts[2]), 2 * 16 - (13 + 16));
}

TEST(SequenceLoaderTest, PaddedLengthsAreMultiples) {
  SequenceLoader loader(sequences_of(kLengths), 8, 5);
  // Padded lengths are 8 for eight sequences and 16 for four.
  const auto parts = loader.parts(0, 12, 2);
  EXPECT_EQ(parts[0].inputs.sizes(), (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(parts[1].inputs.sizes(), (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(padding_in(parts[0]), 8 * 8 - (2 + 2 + 3 + 4 + 4 + 5 + 6 + 7));
  EXPECT_EQ(padding_in(parts[1]), 4 * 16 - (9 + 11 + 13 + 16));
}

TEST(SequenceLoaderTest, TheResultDependsOnTheArgumentsAlone) {
  SequenceLoader loader(sequences_of(kLengths), 4, 5);
  loader.parts(30, 36, 2);
  SequenceLoader other(sequences_of(kLengths), 4, 5);
  const auto a = loader.parts(9, 17, 3), b = other.parts(9, 17, 3);
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_TRUE(a[k].inputs.equal(b[k].inputs));
    EXPECT_TRUE(a[k].targets.equal(b[k].targets));
  }
  SequenceLoader another(sequences_of(kLengths), 4, 6);
  EXPECT_NE(another.indices(0, 12), loader.indices(0, 12));
}

TEST(SequenceLoaderTest, RefusesMoreMicroBatchesThanSequences) {
  SequenceLoader loader(sequences_of(kLengths), 4, 5);
  EXPECT_THAT(error_of([&] { loader.parts(0, 3, 4); }),
              HasSubstr("cannot cut 3 sequences into 4 micro-batches"));
  EXPECT_THAT(error_of([] { SequenceLoader(sequences_of({}), 1, 0); }),
              HasSubstr("there are 0 sequences"));
  EXPECT_THAT(error_of([] { SequenceLoader(sequences_of({2}), 0, 0); }),
              HasSubstr("a multiple of 0"));
}

}  // namespace
}  // namespace gpipe::data
