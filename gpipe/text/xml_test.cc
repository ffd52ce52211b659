#include "gpipe/text/xml.h"

#include <gtest/gtest.h>

namespace gpipe {
namespace {

TEST(XmlTest, WritesWhatHasAMeaningAsEntities) {
  EXPECT_EQ(xml_escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
}

TEST(XmlTest, LeavesTheRestAsItIs) {
  EXPECT_EQ(xml_escaped("1F0 (B, C) \xc3\xa9"), "1F0 (B, C) \xc3\xa9");
  EXPECT_EQ(xml_escaped(""), "");
}

TEST(XmlTest, MarksWhatCannotBeWritten) {
  EXPECT_EQ(xml_escaped(std::string_view("a\0b\n\t", 5)), "a?b\n\t");
}

}  // namespace
}  // namespace gpipe
