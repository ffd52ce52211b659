#include "training/data/text.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "models/testing/files.h"
#include "training/data/random.h"

namespace gpipe::data {
namespace {

using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using gpipe::testing::write_bytes;
using ::testing::HasSubstr;

// ---- Windows

std::string file_with(const std::string& text) {
  const std::string path = new_folder() + "text.txt";
  write_bytes(path, text);
  return path;
}

// Returns tokens 0, 1, ..., size - 1, so that a window shows its place.
TextPart counting(int64_t size) { return {at::arange(size), "counting"}; }

TEST(TextTest, TokensAreTheDistinctBytesInOrder) {
  const Text text(file_with("hello\n\xC3\xA9"));
  EXPECT_EQ(text.vocabulary(), "\nehlo\xA9\xC3");
  EXPECT_EQ(text.tokens().scalar_type(), at::kLong);
  EXPECT_TRUE(at::equal(text.tokens(),
                        at::tensor({2, 1, 3, 3, 4, 0, 6, 5}, at::kLong)));
}

TEST(TextTest, DecodesWhatItWasMadeOf) {
  constexpr char kText[] = "a zero \0 byte,\r\n and \xFF\x80.";
  const std::string all(kText, sizeof(kText) - 1);
  const Text text(file_with(all));
  EXPECT_EQ(text.decode(text.tokens()), all);
  EXPECT_EQ(text.decode(text.tokens().slice(0, 2, 8, 2)), "zr ");
  EXPECT_EQ(text.decode(at::empty({0}, at::kLong)), "");
}

TEST(TextTest, HoldsTheEndOut) {
  const Text text(file_with("abcdefghij"));
  EXPECT_TRUE(at::equal(text.train(0.3).tokens(), at::arange(7)));
  EXPECT_TRUE(at::equal(text.test(0.3).tokens(), at::arange(7, 10)));
  // 10 x 0.25 is rounded to 3.
  EXPECT_EQ(text.train(0.25).size(), 7);
  EXPECT_EQ(text.test(0.25).size(), 3);
}

TEST(TextTest, TestsOnConsecutiveWindows) {
  const TextWindows windows = counting(9).all_windows(4);
  EXPECT_TRUE(at::equal(windows.inputs, at::arange(8).view({2, 4})));
  EXPECT_TRUE(at::equal(windows.targets, at::arange(1, 9).view({2, 4})));
  // With one token less, the last window would have no target for its last
  // input.
  EXPECT_TRUE(at::equal(counting(8).all_windows(4).targets,
                        at::arange(1, 5).view({1, 4})));
}

TEST(TextTest, TrainsOnRandomWindowsOfAllPlaces) {
  const TextPart part = counting(9);
  const TextWindows windows = part.random_windows(200, 4, /*seed=*/1);
  ASSERT_EQ(windows.inputs.sizes(), (std::vector<int64_t>{200, 4}));
  std::set<int64_t> places;
  for (int64_t row = 0; row < 200; ++row) {
    const auto first = windows.inputs[row][0].item<int64_t>();
    places.insert(first);
    EXPECT_TRUE(at::equal(windows.inputs[row], at::arange(first, first + 4)));
    EXPECT_TRUE(
        at::equal(windows.targets[row], at::arange(first + 1, first + 5)));
  }
  EXPECT_EQ(places, (std::set<int64_t>{0, 1, 2, 3, 4}));

  const TextWindows again = part.random_windows(200, 4, 1);
  EXPECT_TRUE(at::equal(again.inputs, windows.inputs));
  EXPECT_TRUE(at::equal(again.targets, windows.targets));
  EXPECT_FALSE(
      at::equal(part.random_windows(200, 4, 2).inputs, windows.inputs));
}

TEST(TextTest, TakesATextOfOneWindow) {
  const TextPart part = counting(5);
  EXPECT_TRUE(at::equal(part.random_windows(2, 4, 1).inputs,
                        at::arange(4).expand({2, 4})));
  EXPECT_TRUE(
      at::equal(part.all_windows(4).targets, at::arange(1, 5).view({1, 4})));
}

TEST(TextTest, NamesAFileThatCannotBeUsed) {
  EXPECT_THAT(value_error_of([] { Text("/no/such/text"); }),
              HasSubstr("/no/such/text: cannot be read"));
  const std::string folder = new_folder();
  EXPECT_THAT(value_error_of([&] { Text{folder}; }),
              HasSubstr(folder + ": cannot be read"));
  const std::string empty = file_with("");
  EXPECT_THAT(value_error_of([&] { Text{empty}; }), HasSubstr("is empty"));
}

TEST(TextTest, NamesATextThatIsShorterThanAWindow) {
  const std::string path = file_with("abcdefghij");
  const Text text(path);
  EXPECT_THAT(value_error_of([&] { text.train(0.5).random_windows(1, 5, 0); }),
              HasSubstr(path + " (its part for training): has 5 tokens; "
                               "windows of 5 need at least 6"));
  EXPECT_THAT(value_error_of([&] { text.test(0.01).all_windows(1); }),
              HasSubstr("(its part for testing): has 0 tokens"));
}

TEST(TextTest, RefusesArgumentsThatMakeNoSense) {
  const Text text(file_with("abc"));
  EXPECT_THROW(text.train(0), c10::ValueError);
  EXPECT_THROW(text.test(1), c10::ValueError);
  EXPECT_THROW(counting(5).random_windows(0, 2, 0), c10::ValueError);
  EXPECT_THROW(counting(5).all_windows(0), c10::ValueError);
  EXPECT_THAT(value_error_of([&] {
                text.decode(at::tensor({0, 3}, at::kLong));
              }),
              HasSubstr("token 3 is not in the vocabulary of 3"));
  EXPECT_THROW(text.decode(at::zeros({1})), c10::ValueError);
}

// ---- Sequences

constexpr int64_t kEnd = ';';

// Returns the characters of `text` as tokens.
at::Tensor tokens_of(const std::string& text) {
  const std::vector<int64_t> tokens(text.begin(), text.end());
  return at::tensor(tokens, at::kLong);
}

// Returns a row of tokens as characters, with '_' for padding.
std::string text_of(const at::Tensor& row) {
  std::string text;
  for (int64_t k = 0; k < row.size(0); ++k) {
    const auto token = row[k].item<int64_t>();
    text.push_back(token == kNoTarget ? '_' : static_cast<char>(token));
  }
  return text;
}

std::vector<std::string> texts_of(const at::Tensor& rows) {
  std::vector<std::string> texts;
  for (const at::Tensor& row : rows.unbind()) texts.push_back(text_of(row));
  return texts;
}

using Texts = std::vector<std::string>;

TEST(SequencesTest, EachTokenIsATargetOnceAndFollowsItsInput) {
  const Sequences all(tokens_of("ab;c;;defg;hi"), kEnd, 100);
  ASSERT_EQ(all.size(), 5);
  EXPECT_EQ(all.num_tokens(), 13);
  const TextWindows rows = all.rows({0, 1, 2, 3, 4}, 1);
  EXPECT_EQ(texts_of(rows.targets),
            (Texts{"ab;__", "c;___", ";____", "defg;", "hi___"}));
  EXPECT_EQ(texts_of(rows.inputs),
            (Texts{";ab;;", ";c;;;", ";;;;;", ";defg", ";h;;;"}));
}

TEST(SequencesTest, ALongSequenceIsCut) {
  const Sequences all(tokens_of("abcdef;gh;"), kEnd, 4);
  EXPECT_EQ(all.length(0), 4);
  EXPECT_EQ(all.length(1), 3);
  EXPECT_EQ(all.num_tokens(), 7);
  EXPECT_EQ(texts_of(all.rows({1, 0}, 1).targets), (Texts{"gh;_", "abcd"}));
  EXPECT_EQ(texts_of(all.rows({1, 0}, 1).inputs), (Texts{";gh;", ";abc"}));
}

TEST(SequencesTest, RowsArePaddedToAMultipleButNotBeyondTheLongest) {
  const Sequences all(tokens_of("abcd;ef;"), kEnd, 10);
  EXPECT_EQ(all.rows({1}, 1).targets.sizes(), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(all.rows({1}, 4).targets.sizes(), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(all.rows({0, 1}, 4).inputs.sizes(), (std::vector<int64_t>{2, 8}));
  EXPECT_EQ(all.rows({0}, 16).inputs.sizes(), (std::vector<int64_t>{1, 10}));
}

TEST(SequencesTest, ASliceHasTheSequencesOfItsRange) {
  const Sequences some =
      Sequences(tokens_of("a;bc;def;g;"), kEnd, 9).slice(1, 3);
  ASSERT_EQ(some.size(), 2);
  EXPECT_EQ(some.num_tokens(), 7);
  EXPECT_EQ(texts_of(some.rows({1}, 1).targets), (Texts{"def;"}));
}

TEST(SequencesTest, RefusesALengthBelowOne) {
  EXPECT_THROW(Sequences(tokens_of("a;"), kEnd, 0), c10::ValueError);
}

// ---- Micro-batches of sequences that have similar lengths

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
  EXPECT_THAT(value_error_of([&] { loader.parts(0, 3, 4); }),
              HasSubstr("cannot cut 3 sequences into 4 micro-batches"));
  EXPECT_THAT(value_error_of([] { SequenceLoader(sequences_of({}), 1, 0); }),
              HasSubstr("there are 0 sequences"));
  EXPECT_THAT(value_error_of([] { SequenceLoader(sequences_of({2}), 0, 0); }),
              HasSubstr("a multiple of 0"));
}

}  // namespace
}  // namespace gpipe::data
