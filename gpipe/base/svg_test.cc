#include "gpipe/base/svg.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
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
  const auto written = [](std::string_view text) {
    const std::string element = svg_text(0, 0, "", text);
    const std::size_t begin = element.find('>') + 1;
    return element.substr(begin, element.find('<', begin) - begin);
  };
  EXPECT_EQ(written("a\xef\xbf\xbe\xef\xbf\xbf\r"), "a???");  // U+FFFE, U+FFFF
  EXPECT_EQ(written("\xed\xa0\x80\xed\xbf\xbf"), "??");       // surrogates
  EXPECT_EQ(written("\xf4\x90\x80\x80"), "?");                // above U+10FFFF
  // Bytes that begin no character: a lone one, cut ones, too long forms.
  EXPECT_EQ(written("\xff\xbf z\xc3"), "?? z?");
  EXPECT_EQ(written("\xe2\x82 \xf0\x9f\x98"), "?? ???");
  EXPECT_EQ(written("\xc0\xaf\xe0\x80\xaf"), "?????");
  // The first and the last character of each length.
  for (const std::string_view text :
       {" ", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
        "\xee\x80\x80", "\xef\xbf\xbd", "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(written(text), text);
  }
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
