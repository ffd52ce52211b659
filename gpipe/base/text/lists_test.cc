#include "gpipe/base/text/lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
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

TEST(ParseTest, ReadsNumbersOfAnySign) {
  EXPECT_THAT(parse_numbers("balance", "10,0,-2"), ElementsAre(10, 0, -2));
  for (const char* text : {"1,,2", "1.5", "a", "1 2", "1,"}) {
    EXPECT_THAT(error_of([&] { parse_numbers("balance", text); }),
                EndsWith("' is not a whole number"));
  }
}

TEST(ParseTest, ReadsAmounts) {
  EXPECT_THAT(parse_amounts("forward", "1, 0.5,2e3"),
              ElementsAre(1, 0.5, 2000));
  for (const char* entry : {"-1", "nan", "inf", "x", ""}) {
    EXPECT_EQ(
        error_of([&] { parse_amounts("forward", std::string("1,") + entry); }),
        std::string("--forward=1,") + entry + ": '" + entry +
            "' is not a number of 0 or more");
  }
}

TEST(ParseTest, ListsTheFirstLines) {
  const auto quoted = [](const std::string& each) { return "'" + each + "'"; };
  EXPECT_EQ(first_lines({}, 2), "");
  EXPECT_EQ(first_lines({"a", "b"}, 2), "\n  a\n  b");
  EXPECT_EQ(first_lines({"a", "b", "c"}, 2, quoted),
            "\n  'a'\n  'b'\n  and 1 more");
}

TEST(ParseTest, NamesTheChoices) {
  EXPECT_EQ(parse_choice("format", "csv", {"text", "csv"}), 1U);
  EXPECT_EQ(error_of([] {
              parse_choice("format", "xml", {"text", "csv"});
            }),
            "--format=xml: expected text, csv");
}

}  // namespace
}  // namespace gpipe
