#include "gpipe/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include "gpipe/testing/thrown.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;

constexpr auto error_of = [](const auto& body) {
  return testing::thrown<std::invalid_argument>(body);
};

TEST(InQuotesTest, ShowsWhatCannotBePrintedAndCutsWhatIsLong) {
  EXPECT_EQ(internal::in_quotes(""), "''");
  EXPECT_EQ(internal::in_quotes("conv1.weight"), "'conv1.weight'");
  EXPECT_EQ(internal::in_quotes(std::string_view("a\n\x1b\0\x7f", 5)),
            "'a\\x0a\\x1b\\x00\\x7f'");
  EXPECT_EQ(internal::in_quotes("\xc3\xbc"), "'\xc3\xbc'");
  EXPECT_EQ(internal::in_quotes(std::string(100, 'x')),
            "'" + std::string(100, 'x') + "'");
  EXPECT_EQ(internal::in_quotes(std::string(101, 'x')),
            "'" + std::string(100, 'x') + "...'");
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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ColumnsTest, ColumnsAreAsWideAsTheirLongestCell) {
  EXPECT_THAT(align_columns({{"#", "layer", "parameters"},
                             {"0", "conv", "1,728"},
                             {"10", "relu_17", "0"}},
                            "rlr"),
              ElementsAre("   #  layer    parameters",  //
                          "   0  conv          1,728",  //
                          "  10  relu_17           0"));
}

TEST(ColumnsTest, ACellMayBeEmpty) {
  EXPECT_THAT(align_columns({{"a", "", "b"}, {"", "", "c"}}, "llr"),
              ElementsAre("  a    b", "       c"));
}

TEST(ColumnsTest, NoRowsAreNoLines) {
  EXPECT_THAT(align_columns({}, "lr"), IsEmpty());
}

TEST(ColumnsTest, RepeatsTheLastSideInATextOfLines) {
  EXPECT_EQ(columns_text({{"a", "b", "c"}, {"de", "fg", "hi"}}, "lr"),
            "  a    b   c\n  de  fg  hi\n");
  EXPECT_EQ(columns_text({}, "lr"), "");
  EXPECT_THROW(columns_text({{"a"}}, "lr"), std::invalid_argument);
}

TEST(ColumnsTest, NamesARowOfAnotherLength) {
  EXPECT_THAT(
      [] {
        align_columns({{"a", "b"}, {"a", "b", "c"}}, "lr");
      },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("row 1 has 3 cells"),
                                                 HasSubstr("\"lr\""),
                                                 HasSubstr("2 columns"))));
}

TEST(ColumnsTest, NamesSidesThatAreNone) {
  EXPECT_THAT(
      [] {
        align_columns({{"a", "b"}}, "lc");
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("\"lc\"")));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(UnitsTest, BytesAreInTheLargestUnitOfWhichThereIsOne) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1 KiB");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(0x1p20), "1 MiB");
  EXPECT_EQ(bytes_text(0x1p30), "1 GiB");
  EXPECT_EQ(bytes_text(0x1p40), "1 TiB");
}

TEST(UnitsTest, SecondsAreInTheLargestUnitOfWhichThereIsOne) {
  EXPECT_EQ(seconds_text(0), "0 us");
  EXPECT_EQ(seconds_text(0.25e-6), "0.25 us");
  EXPECT_EQ(seconds_text(0.0005), "500 us");
  EXPECT_EQ(seconds_text(0.0625), "62.5 ms");
  EXPECT_EQ(seconds_text(1), "1 s");
}

TEST(UnitsTest, TheLargestUnitGoesOn) {
  EXPECT_EQ(bytes_text(0x1p52), "4096 TiB");
  EXPECT_EQ(seconds_text(3600), "3600 s");
}

TEST(UnitsTest, NumbersHaveFourDigitsAtMost) {
  EXPECT_EQ(bytes_text(1234567), "1.177 MiB");  // 1.17737...
  EXPECT_EQ(bytes_text(170.0 * 0x1p20 + 0x1p17), "170.1 MiB");
  EXPECT_EQ(seconds_text(12.34567), "12.35 s");
}

TEST(UnitsTest, ALimitThatIsNoneIsUnlimited) {
  EXPECT_EQ(bytes_text(kInfinity), "unlimited");
  EXPECT_EQ(seconds_text(kInfinity), "unlimited");
}

TEST(PercentTextTest, RoundsToTheDecimals) {
  EXPECT_EQ(percent_text(0.125), "12.5 %");
  EXPECT_EQ(percent_text(0.126, 0), "13 %");
  EXPECT_EQ(percent_text(-0.5, 2), "-50.00 %");
  EXPECT_EQ(percent_text(1, 0), "100 %");
}

TEST(EditDistanceTest, CountsInsertionsDeletionsAndExchanges) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("same", "same"), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 2);
  EXPECT_EQ(edit_distance("encodr", "encoder"), 1);
  EXPECT_EQ(edit_distance("encoder", "encodr"), 1);
}

TEST(ModuleTypeName, IsThatOfTheHolder) {
  EXPECT_EQ(module_type_name("torch::nn::Conv2dImpl"), "Conv2d");
  EXPECT_EQ(module_type_name("ns::CellImpl<std::vector<int>>"), "Cell");
  EXPECT_EQ(module_type_name("Plain"), "Plain");
  EXPECT_EQ(module_type_name("ns::Impl"), "Impl");
}

}  // namespace
}  // namespace gpipe
