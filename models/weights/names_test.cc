#include "models/weights/names.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/testing/files.h"

namespace gpipe {
namespace {

using testing::value_error_of;
using Names = std::vector<std::string>;

StateDict dict_of(const Names& names) {
  StateDict dict;
  double value = 0;
  for (const std::string& name : names) {
    dict.insert(name, at::full({1}, value++));
  }
  return dict;
}

TEST(NamesTest, AreExchangedInPlaceAndOthersStay) {
  const StateDict dict = dict_of({"a", "b", "c"});
  const StateDict renamed =
      rename(dict, {{"b", "a"}, {"not there", "x"}, {"a", "b"}});
  EXPECT_EQ(renamed.keys(), (Names{"b", "a", "c"}));
  EXPECT_EQ(renamed["b"].item<float>(), 0);
  EXPECT_EQ(renamed["a"].item<float>(), 1);
  EXPECT_TRUE(renamed["c"].is_same(dict["c"]));
}

TEST(NamesTest, LeadBackByTheInverse) {
  const NameTable table = {{"a", "x"}, {"b", "y"}};
  EXPECT_EQ(inverse(table), (NameTable{{"x", "a"}, {"y", "b"}}));
  EXPECT_EQ(rename(rename(dict_of({"b", "a"}), table), inverse(table)).keys(),
            (Names{"b", "a"}));
}

TEST(NamesTest, AllThatAreThereTwiceAreListed) {
  EXPECT_EQ(value_error_of([] {
              rename(dict_of({"a", "b", "c", "d"}),
                     {{"a", "x"}, {"b", "x"}, {"c", "d"}});
            }),
            "'a' and 'b' would both be 'x'; 'c' and 'd' would both be 'd'");
  EXPECT_EQ(value_error_of([] {
              rename(dict_of({"a"}), {{"a", "x"}, {"b", "y"}, {"a", "z"}});
            }),
            "a table of names has more than one for 'a'");
}

}  // namespace
}  // namespace gpipe
