#include "training/data/text.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(error_of([] { Text("/no/such/text"); }),
              HasSubstr("/no/such/text: cannot be read"));
  const std::string folder = new_folder();
  EXPECT_THAT(error_of([&] { Text{folder}; }),
              HasSubstr(folder + ": cannot be read"));
  const std::string empty = file_with("");
  EXPECT_THAT(error_of([&] { Text{empty}; }), HasSubstr("is empty"));
}

TEST(TextTest, NamesATextThatIsShorterThanAWindow) {
  const std::string path = file_with("abcdefghij");
  const Text text(path);
  EXPECT_THAT(error_of([&] { text.train(0.5).random_windows(1, 5, 0); }),
              HasSubstr(path + " (its part for training): has 5 tokens; "
                               "windows of 5 need at least 6"));
  EXPECT_THAT(error_of([&] { text.test(0.01).all_windows(1); }),
              HasSubstr("(its part for testing): has 0 tokens"));
}

TEST(TextTest, RefusesArgumentsThatMakeNoSense) {
  const Text text(file_with("abc"));
  EXPECT_THROW(text.train(0), c10::ValueError);
  EXPECT_THROW(text.test(1), c10::ValueError);
  EXPECT_THROW(counting(5).random_windows(0, 2, 0), c10::ValueError);
  EXPECT_THROW(counting(5).all_windows(0), c10::ValueError);
  EXPECT_THAT(error_of([&] {
                text.decode(at::tensor({0, 3}, at::kLong));
              }),
              HasSubstr("token 3 is not in the vocabulary of 3"));
  EXPECT_THROW(text.decode(at::zeros({1})), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::data
