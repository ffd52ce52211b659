#include "training/data/sequences.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::data {
namespace {

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

}  // namespace
}  // namespace gpipe::data
