#include "gpipe/simulation/draw/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

int count(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos;
       at += part.size()) {
    ++count;
  }
  return count;
}

// Returns the first part of `xml` that is not well-formed; empty if there is
// none. It knows only what to_svg() writes: elements, attributes in double
// quotes, and text.
std::string fault_of(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < xml.size(); ++at) {
    if (xml[at] == '>') return "a > in text";
    if (xml[at] == '&') {
      at = xml.find(';', at);
      if (at > xml.size()) return "an & in text";
    }
    if (xml[at] != '<') continue;
    const std::size_t end = xml.find('>', at);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (end > xml.size() || tag.empty() || count(tag, "<") > 0 ||
        count(tag, "\"") % 2 != 0 ||
        count(tag, "=\"") != count(tag, "\"") / 2) {
      return tag;
    }
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end;
  }
  return open.empty() ? "" : open.back();
}

TEST(SvgTest, HasABoxForEachActionToScale) {
  const std::string svg =
      to_svg(simulate(fill_drain(2, 2), costs_of(2)), 200 + 900);
  EXPECT_EQ(fault_of(svg), "");
  EXPECT_EQ(count(svg, "class=\"box F\""), 4);
  EXPECT_EQ(count(svg, "class=\"box B\""), 4);
  EXPECT_EQ(count(svg, "url(#idle)"), 2);
  // 900 pixels show 9 s, and begin at x = 70.
  EXPECT_THAT(svg, HasSubstr("class=\"box B\" x=\"570.00\" y=\"62.00\" "
                             "width=\"200.00\" height=\"28.00\"><title>1B0: "
                             "backward of micro-batch 0, stage 1\n"
                             "5 s to 7 s, takes 2 s</title>"));
  EXPECT_THAT(svg, HasSubstr(">9 s, bubble 33.3 %<"));
  EXPECT_THAT(svg, HasSubstr("rank 1: idle 3 s (33.3 %)"));
  EXPECT_THAT(svg, HasSubstr(">F: forward<"));
  EXPECT_THAT(svg, Not(HasSubstr("recompute")));
}

TEST(SvgTest, ATickIsARoundNumberOfSeconds) {
  const std::string svg = to_svg(simulate(fill_drain(2, 2), costs_of(2)));
  EXPECT_EQ(count(svg, "class=\"tick\""), 5);  // 0, 2, 4, 6, 8
  EXPECT_THAT(svg, HasSubstr(">8 s<"));
}

TEST(SvgTest, APairSharesItsLane) {
  const Schedule schedule = {
      {{{0, ActionKind::kForward, 0},
        {0, ActionKind::kForward, 1, /*fused_with_next=*/true},
        {0, ActionKind::kBackward, 0},
        {0, ActionKind::kBackward, 1}}}};
  const std::string svg = to_svg(simulate(schedule, costs_of(1)), 800);
  EXPECT_EQ(fault_of(svg), "");
  // 600 pixels show 6 s.
  EXPECT_THAT(svg, HasSubstr("F\" x=\"170.00\" y=\"30.00\" width=\"300.00\" "
                             "height=\"14.00\"><title>0F1"));
  EXPECT_THAT(svg, HasSubstr("B\" x=\"170.00\" y=\"44.00\" width=\"300.00\" "
                             "height=\"14.00\"><title>0B0"));
  EXPECT_THAT(svg, HasSubstr("B\" x=\"470.00\" y=\"30.00\" width=\"200.00\" "
                             "height=\"28.00\"><title>0B1"));
}

TEST(SvgTest, ALaterStageOfARankIsPaler) {
  const Schedule schedule = {
      {{{0, ActionKind::kForward, 0}, {1, ActionKind::kForward, 0}}}};
  const std::string svg = to_svg(simulate(schedule, costs_of(2)));
  EXPECT_EQ(fault_of(svg), "");
  EXPECT_EQ(count(svg, "fill-opacity=\"0.75\"><title>1F0"), 1);
  EXPECT_EQ(count(svg, "fill-opacity"), 1);
}

TEST(SvgTest, HasMemoryAndCopiesIfTheTimelineDoes) {
  Costs costs = costs_of(2);
  std::string svg = to_svg(simulate(fill_drain(2, 1), costs), 800);
  EXPECT_EQ(count(svg, "<path class=\"memory\""), 0);
  EXPECT_EQ(count(svg, "<line class=\"copy\""), 0);
  costs.latency = 3;
  costs.activation_bytes = {1024, 512};
  svg = to_svg(simulate(fill_drain(2, 1), costs), 800);
  EXPECT_EQ(fault_of(svg), "");
  EXPECT_EQ(count(svg, "<line class=\"copy\""), 2);
  // 600 pixels show 12 s: 0F0 0-1, 1F0 4-5, 1B0 5-7, 0B0 10-12. A height of 36
  // pixels shows 1024 bytes.
  EXPECT_THAT(svg, HasSubstr("d=\"M70.00 156.00H70.00V120.00H670.00V156.00"
                             "H670.00V156.00Z\""));
  EXPECT_THAT(svg, HasSubstr("d=\"M70.00 196.00H70.00V196.00H270.00V178.00"
                             "H420.00V196.00H670.00V196.00Z\""));
  EXPECT_THAT(svg, HasSubstr(">peak 1 KiB<"));
}

TEST(SvgTest, RanksOfOtherProcessesKeepTheirNumbers) {
  const std::string svg = to_svg(second_of_two());
  EXPECT_EQ(fault_of(svg), "");
  EXPECT_THAT(svg, HasSubstr(">rank 1<"));
  EXPECT_THAT(svg, HasSubstr(">rank 1: idle 3.5 s (87.5 %)<"));
  EXPECT_THAT(svg, HasSubstr(">bytes 1<"));
  EXPECT_THAT(svg, HasSubstr(">memory of rank 1: peak 10 B<"));
  EXPECT_THAT(svg, Not(HasSubstr("rank 0")));
}

TEST(SvgTest, TimelinesAreOnOneScale) {
  Costs twice = costs_of(1);
  twice.forward = {2};
  twice.backward = {4};
  const Schedule schedule = fill_drain(1, 1);
  const std::string svg =
      to_svg({{"predicted", simulate(schedule, costs_of(1))},
              {"measured", simulate(schedule, twice)}},
             800);
  EXPECT_EQ(fault_of(svg), "");
  EXPECT_THAT(svg, HasSubstr(">predicted: 3 s, bubble 0.0 %<"));
  EXPECT_THAT(svg, HasSubstr(">measured: 6 s, bubble 0.0 %<"));
  EXPECT_EQ(count(svg, "x=\"70.00\" y=\"30.00\" width=\"100.00\""), 1);
  EXPECT_EQ(count(svg, "x=\"70.00\" y=\"118.00\" width=\"200.00\""), 1);
}

TEST(SvgTest, NamesAreEscaped) {
  const std::string svg =
      to_svg({{"<a href=\"x\"> & \x01 \xc3\xbc", timeline_of({{}})}});
  EXPECT_EQ(fault_of(svg), "");
  EXPECT_THAT(svg,
              HasSubstr("&lt;a href=&quot;x&quot;&gt; &amp; ? \xc3\xbc: 0 us"));
}

TEST(SvgTest, RefusesToBeNarrow) {
  EXPECT_THAT([] { to_svg(timeline_of({{}}), 399); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("399 pixels")));
}

}  // namespace
}  // namespace gpipe
