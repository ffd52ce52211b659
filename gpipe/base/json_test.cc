#include "gpipe/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gpipe/testing/thrown.h"

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto error_of = [](const auto& body) {
  return testing::thrown<c10::ValueError>(body);
};

std::string parse_error(const std::string& text,
                        const JsonLimits& limits = {}) {
  return error_of([&] { parse_json(text, "a.json: ", limits); });
}

TEST(ParseJsonTest, ReadsWhatIsWrittenInItsOrder) {
  const std::string text =
      R"({"b":[1,-2,0.5,"x",null,true,{},[]],"a":{"c":18446744073709551615}})";
  EXPECT_EQ(parse_json(text, "").dump(), text);
  EXPECT_EQ(parse_json("3", "").dump(), "3");
}

TEST(ParseJsonTest, SaysWhatIsNoJson) {
  for (const char* broken :
       {"", "{", "{}}", "{\"a\"}", "{} x", "{\"\xff\":1}", "[1e999]"}) {
    EXPECT_THAT(parse_error(broken), StartsWith("a.json: is not JSON: "))
        << broken;
  }
  EXPECT_THAT(parse_error("{\n \"a\": }"), HasSubstr("line 2, column 7"));
}

TEST(ParseJsonTest, AnObjectHasANameOnce) {
  EXPECT_EQ(parse_error(R"({"a": 1, "b": 2, "a": 3})"),
            "a.json: has 'a' twice");
  EXPECT_EQ(parse_error(R"({"x": [0, {"a": null, "a": {}}]})"),
            "a.json: has 'a' twice (at '/x/1')");
  EXPECT_EQ(parse_error(R"({"a": {"a": 1}, "b": {"a": 1}})"), "no error");
}

TEST(ParseJsonTest, HasLimits) {
  EXPECT_EQ(parse_error("[[1], {}]", {.depth = 2}), "no error");
  EXPECT_THAT(parse_error("[[[]]]", {.depth = 2}),
              StartsWith("a.json: has more than 2 levels of nesting"));
  EXPECT_THAT(parse_error(std::string(1000000, '[')),
              HasSubstr("has more than 256 levels of nesting"));
  EXPECT_EQ(parse_error(R"({"a": [1, 2]})", {.list = 2}), "no error");
  EXPECT_EQ(parse_error(R"({"a": [1, 2, 3]})", {.list = 2}),
            "a.json: has a list of more than 2 entries (at '/a')");
}

TEST(JsonValueTest, ValuesOfAnotherKindAreRefused) {
  const Json json = parse_json(
      R"({"i": 3, "f": 1.5, "t": "x", "l": [1], "big": 18446744073709551615,
          "n": -1, "b": true, "none": null})",
      "");
  EXPECT_EQ(integer(field(json, "i")), 3);
  EXPECT_EQ(integer(field(json, "n")), -1);
  EXPECT_EQ(whole(field(json, "i")), 3);
  EXPECT_EQ(text(field(json, "t")), "x");
  EXPECT_TRUE(boolean(field(json, "b")));
  EXPECT_EQ(list(field(json, "l")).size(), 1u);
  EXPECT_EQ(error_of([&] { whole(field(json, "n")); }),
            "expected a number of 0 or more, but found -1; the file is "
            "damaged");
  EXPECT_EQ(error_of([&] { integer(field(json, "f")); }),
            "expected an integer, but found 1.5; the file is damaged");
  EXPECT_EQ(error_of([&] { integer(field(json, "big")); }),
            "expected an integer of 64 bits, but found 18446744073709551615; "
            "the file is damaged");
  EXPECT_EQ(error_of([&] { (void)text(field(json, "l")); }),
            "expected a text, but found a list of 1 entries; the file is "
            "damaged");
  EXPECT_EQ(error_of([&] { (void)list(json); }),
            "expected a list, but found an object of 8 entries; the file is "
            "damaged");
  EXPECT_EQ(error_of([&] { field(json, "x"); }),
            "an entry 'x' is missing in an object of 8 entries; the file is "
            "damaged");
  EXPECT_EQ(find_field(json, "x"), nullptr);
  EXPECT_EQ(find_field(json, "none"), nullptr);
}

TEST(JsonValueTest, AnErrorSaysWhereTheValueIs) {
  const auto read_third = [](const Json& json) {
    return integer(field(list(field(json, "x"))[2], "y"));
  };
  EXPECT_EQ(read_json(R"({"x": [0, 1, {"y": 5}]})", "", {}, read_third), 5);
  EXPECT_EQ(error_of([&] {
              read_json(R"({"x": [0, 1, {"y": "5"}]})", "", {}, read_third);
            }),
            "expected an integer, but found '5'; the file is damaged (at "
            "'/x/2/y')");
}

}  // namespace
}  // namespace gpipe::internal
