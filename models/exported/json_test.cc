#include "models/exported/json.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/weights/testing/files.h"

namespace gpipe::exported {
namespace {

using testing::value_error_of;

TEST(JsonTest, ValuesOfAnotherKindAreRefused) {
  const Json json = parse_json(
      R"({"i": 3, "f": 1.5, "t": "x", "l": [1], "big": 18446744073709551615})",
      "record");
  EXPECT_EQ(integer(field(json, "i")), 3);
  EXPECT_EQ(value_error_of([&] { integer(field(json, "f")); }),
            "expected an integer, but found 1.5; the file is damaged");
  EXPECT_EQ(value_error_of([&] { integer(field(json, "big")); }),
            "expected an integer of 64 bits, but found 18446744073709551615; "
            "the file is damaged");
  EXPECT_EQ(value_error_of([&] { text(field(json, "l")); }),
            "expected a text, but found a list of 1 entries; the file is "
            "damaged");
  EXPECT_EQ(value_error_of([&] { field(json, "x"); }),
            "an entry 'x' is missing in an object of 5 entries; the file is "
            "damaged");
  EXPECT_EQ(find_field(json, "x"), nullptr);
  EXPECT_EQ(value_error_of([&] { alternative(json); }),
            "expected an object of one entry, but found an object of 5 "
            "entries; the file is damaged");
}

TEST(JsonTest, InfinitiesAreTexts) {
  const Json json = parse_json(R"(["Infinity", "-Infinity", "NaN", 2])", "r");
  EXPECT_EQ(real(json[0]), INFINITY);
  EXPECT_EQ(real(json[1]), -INFINITY);
  EXPECT_TRUE(std::isnan(real(json[2])));
  EXPECT_EQ(real(json[3]), 2.0);
  EXPECT_THROW(real(parse_json("\"inf\"", "r")), c10::ValueError);
  EXPECT_NE(value_error_of([] {
              parse_json("{", "a/b.json");
            }).find("record 'a/b.json' is not JSON"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe::exported
