#include "models/weights/in_quotes.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace gpipe::internal {
namespace {

TEST(InQuotesTest, ShowsWhatCannotBePrintedAndCutsWhatIsLong) {
  EXPECT_EQ(in_quotes(""), "''");
  EXPECT_EQ(in_quotes("conv1.weight"), "'conv1.weight'");
  EXPECT_EQ(in_quotes(std::string_view("a\n\x1b\0\x7f", 5)),
            "'a\\x0a\\x1b\\x00\\x7f'");
  EXPECT_EQ(in_quotes("\xc3\xbc"), "'\xc3\xbc'");
  EXPECT_EQ(in_quotes(std::string(100, 'x')),
            "'" + std::string(100, 'x') + "'");
  EXPECT_EQ(in_quotes(std::string(101, 'x')),
            "'" + std::string(100, 'x') + "...'");
}

}  // namespace
}  // namespace gpipe::internal
