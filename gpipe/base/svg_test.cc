#include "gpipe/base/svg.h"

#include <gtest/gtest.h>

#include <string_view>

namespace gpipe {
namespace {

TEST(SvgElementTest, HasItsAttributesAndItsTooltip) {
  EXPECT_EQ(svg_box("bar", 1, 2, 3.5, 4, "fill=\"red\"", "a"),
            "<rect class=\"bar\" x=\"1.00\" y=\"2.00\" width=\"3.50\" "
            "height=\"4.00\" fill=\"red\"><title>a</title></rect>\n");
  EXPECT_EQ(svg_line("", 1, 2, 3, 4),
            "<line x1=\"1.00\" y1=\"2.00\" x2=\"3.00\" y2=\"4.00\"/>\n");
}

TEST(SvgElementTest, WritesWhatHasAMeaningAsEntities) {
  EXPECT_EQ(svg_text(0, 1, "title", "a<b> & \"c\" \xc3\xa9"),
            "<text x=\"0.00\" y=\"1.00\" class=\"title\">a&lt;b&gt; &amp; "
            "&quot;c&quot; \xc3\xa9</text>\n");
}

TEST(SvgElementTest, MarksWhatCannotBeWritten) {
  EXPECT_EQ(svg_text(0, 0, "", std::string_view("a\0b\n\t", 5)),
            "<text x=\"0.00\" y=\"0.00\">a?b\n\t</text>\n");
}

TEST(TickStepTest, IsARoundNumber) {
  EXPECT_EQ(tick_step(9, 8), 2);
  EXPECT_EQ(tick_step(4, 6), 1);
  EXPECT_EQ(tick_step(8, 8), 1);
  EXPECT_GT(tick_step(5e-324, 8), 0);
  EXPECT_DOUBLE_EQ(tick_step(0.3, 8), 0.05);
}

}  // namespace
}  // namespace gpipe
