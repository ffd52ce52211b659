#include "benchmarks/harness/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseTest, SplitsAtCommas) {
  EXPECT_THAT(split_list(""), IsEmpty());
  EXPECT_THAT(split_list("a"), ElementsAre("a"));
  EXPECT_THAT(split_list("a, b ,c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(split_list("a,,b,"), ElementsAre("a", "", "b", ""));
}

TEST(ParseTest, ReadsPositiveNumbers) {
  EXPECT_THAT(parse_positive_list("balance", ""), IsEmpty());
  EXPECT_THAT(parse_positive_list("balance", "135, 235"),
              ElementsAre(135, 235));
}

TEST(ParseTest, NamesTheFlagAndTheEntryThatIsNoPositiveNumber) {
  for (const char* entry :
       {"x", "0", "-1", "1.5", "1x", "", "99999999999999999999"}) {
    const std::string text = std::string("1,") + entry;
    EXPECT_EQ(error_of([&] { parse_positive_list("balance", text); }),
              "--balance=" + text + ": '" + entry +
                  "' is not a whole number above 0");
  }
}

TEST(ParseTest, JoinsNumbers) {
  EXPECT_EQ(join(std::vector<int64_t>{}), "");
  EXPECT_EQ(join(std::vector<int64_t>{3, 4}), "3,4");
}

TEST(ParseTest, JoinsTexts) {
  EXPECT_EQ(join({"a", "b"}, " or "), "a or b");
  EXPECT_EQ(join({"", "", "2", ""}, ","), ",,2,");
}

TEST(ParseTest, NamesTheChoices) {
  EXPECT_EQ(parse_choice("format", "csv", {"text", "csv"}), 1U);
  EXPECT_EQ(error_of([] {
              parse_choice("format", "xml", {"text", "csv"});
            }),
            "--format=xml: expected text, csv");
}

}  // namespace
}  // namespace gpipe::benchmarks
