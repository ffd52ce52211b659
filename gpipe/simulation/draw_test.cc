#include "gpipe/simulation/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

TEST(TimelineTextTest, IsToScale) {
  EXPECT_EQ(to_text(simulate(fill_drain(2, 2), costs_of(2)), 36),
            "        0                                9 s\n"
            "rank 0 |0F0-0F1-............0B1-----0B0-----| idle 33.3 %\n"
            "rank 1 |....1F0-1F1-1B1-----1B0-----........| idle 33.3 %\n");
}

TEST(TimelineTextTest, WhereThereIsNoRoomALetterStandsForTheName) {
  EXPECT_EQ(to_text(simulate(fill_drain(2, 2), costs_of(2)), 9),
            "        0     9 s\n"
            "rank 0 |FF...B-B-| idle 33.3 %\n"
            "rank 1 |.FFB-B-..| idle 33.3 %\n");
  EXPECT_EQ(to_text(simulate(fill_drain(1, 1), costs_of(1)), 2),
            "        0 3 s\n"
            "rank 0 |FB| idle 0.0 %\n");
}

TEST(TimelineTextTest, AnOverlappedPairIsOneBox) {
  const Schedule schedule = schedule_with_a_pair(1);
  EXPECT_EQ(to_text(simulate(schedule, costs_of(1)), 18),
            "        0              6 s\n"
            "rank 0 |F--0F1&0B0--0B1---| idle 0.0 %\n");
}

// A schedule without backwards may be a part of another one.
TEST(TimelineTextTest, CopiesAfterTheLastActionAreNotDrawn) {
  Costs costs = costs_of(1);
  costs.activation_bytes = {2};
  costs.host_bandwidth = 4;
  EXPECT_EQ(to_text(simulate(parse_schedule("0F0,0O0,0L0,0F1"), costs), 8),
            "           0    2 s\n"
            "rank 0    |0F0-0F1-| idle 0.0 %\n"
            "to host   |....O-..|\n"
            "from host |......L-|\n");
  EXPECT_EQ(to_text(simulate(parse_schedule("0F0,0O0,0L0"), costs), 8),
            "           0    1 s\n"
            "rank 0    |0F0-----| idle 0.0 %\n"
            "to host   |........|\n"
            "from host |........|\n");
}

TEST(TimelineTextTest, NumbersOfRanksAreAligned) {
  Timeline timeline = timeline_of(std::vector<std::vector<Span>>(11));
  timeline.ranks[10] = {{act("0F0"), 0, 1}};
  const std::string text = to_text(timeline_of(timeline.ranks), 4);
  EXPECT_THAT(text, HasSubstr("rank  9 |....| idle 100.0 %\n"));
  EXPECT_THAT(text, HasSubstr("rank 10 |0F0-| idle 0.0 %\n"));
}

TEST(TimelineTextTest, RanksOfOtherProcessesKeepTheirNumbers) {
  Timeline timeline = second_of_two();
  EXPECT_EQ(to_text(timeline, 8),
            "        0    4 s\n"
            "rank 1 |.......F| idle 87.5 %\n");
  timeline.first_rank = 10;
  EXPECT_EQ(to_text(timeline, 8),
            "         0    4 s\n"
            "rank 10 |.......F| idle 87.5 %\n");
}

TEST(TimelineTextTest, NothingIsEmpty) {
  EXPECT_EQ(to_text(timeline_of({{}, {}}), 6),
            "        0 0 us\n"
            "rank 0 |......|\n"
            "rank 1 |......|\n");
}

TEST(TimelineTextTest, RefusesToHaveNoColumns) {
  EXPECT_THAT([] { to_text(timeline_of({{}}), 0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("0 columns")));
}

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
  const Schedule schedule = schedule_with_a_pair(1);
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
  const Schedule schedule = parse_schedule("0F0,1F0\n");
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

using Json = nlohmann::json;

bool is_idle(const Json& event) {
  return event.contains("cat") && event.at("cat") == "idle";
}

// Returns the events of one phase, without idle time.
std::vector<Json> events_of(const std::string& trace, const std::string& ph) {
  std::vector<Json> events;
  const Json json = Json::parse(trace);
  for (const Json& event : json.at("traceEvents")) {
    if (event.at("ph") == ph && !is_idle(event)) events.push_back(event);
  }
  return events;
}

std::map<std::string, Json> by_name(const std::vector<Json>& events) {
  std::map<std::string, Json> result;
  for (const Json& event : events) {
    const bool is_new = result.emplace(event.at("name"), event).second;
    EXPECT_TRUE(is_new) << event;
  }
  return result;
}

// Returns the names of tracks ("thread_name") or processes ("process_name").
std::vector<std::string> names(const std::string& trace,
                               const std::string& kind) {
  std::vector<std::string> names;
  for (const Json& event : events_of(trace, "M")) {
    if (event.at("name") == kind) names.push_back(event.at("args").at("name"));
  }
  return names;
}

TEST(ChromeTraceTest, ActionsAreEventsInMicroseconds) {
  const std::string trace =
      to_chrome_trace(simulate(fill_drain(2, 2), costs_of(2)));
  EXPECT_THAT(names(trace, "process_name"), ElementsAre("pipeline"));
  EXPECT_THAT(names(trace, "thread_name"), ElementsAre("rank 0", "rank 1"));
  const auto events = by_name(events_of(trace, "X"));
  EXPECT_EQ(events.size(), 8);
  const Json& event = events.at("1B0");
  EXPECT_EQ(event.at("ts"), 5e6);
  EXPECT_EQ(event.at("dur"), 2e6);
  EXPECT_EQ(event.at("tid"), 2);
  EXPECT_EQ(event.at("args"),
            Json({{"stage", 1}, {"kind", "backward"}, {"microbatch", 0}}));
  EXPECT_THAT(events_of(trace, "C"), IsEmpty());
}

TEST(ChromeTraceTest, ArrowsGoToTheNeighbouringStages) {
  const std::string trace =
      to_chrome_trace(simulate(fill_drain(3, 1), costs_of(3)));
  // Returns the name of the event that contains the end of an arrow.
  const auto at = [&](const Json& end) -> std::string {
    for (const Json& event : events_of(trace, "X")) {
      const double from = event.at("ts"), dur = event.at("dur");
      const double time = end.at("ts");
      if (event.at("tid") == end.at("tid") && from <= time &&
          time < from + dur) {
        return event.at("name");
      }
    }
    return "nothing";
  };
  std::map<int, std::pair<std::string, std::string>> arrows;
  for (const Json& end : events_of(trace, "s")) {
    arrows[end.at("id")].first = at(end);
  }
  for (const Json& end : events_of(trace, "f")) {
    EXPECT_EQ(end.at("bp"), "e");
    arrows[end.at("id")].second = at(end);
  }
  std::set<std::pair<std::string, std::string>> ends;
  for (const auto& [id, arrow] : arrows) ends.insert(arrow);
  EXPECT_THAT(ends,
              UnorderedElementsAre(Pair("0F0", "1F0"), Pair("1F0", "2F0"),
                                   Pair("2B0", "1B0"), Pair("1B0", "0B0")));
}

TEST(ChromeTraceTest, APairIsOnTwoTracks) {
  const Schedule schedule = schedule_with_a_pair(1);
  const std::string trace = to_chrome_trace(simulate(schedule, costs_of(1)));
  EXPECT_THAT(names(trace, "thread_name"),
              ElementsAre("rank 0", "rank 0, overlapped"));
  const auto events = by_name(events_of(trace, "X"));
  EXPECT_EQ(events.at("0F1").at("tid"), 1);
  EXPECT_EQ(events.at("0B0").at("tid"), 2);
  EXPECT_EQ(events.at("0B1").at("tid"), 1);
  EXPECT_EQ(events.at("0F1").at("dur"), events.at("0B0").at("dur"));
}

TEST(ChromeTraceTest, CopiesAreOnATrackOfTheirLink) {
  Costs costs = costs_of(2);
  costs.latency = 0.5;
  costs.bandwidth = 1;
  costs.boundary_bytes = {3};
  const std::string trace = to_chrome_trace(simulate(fill_drain(2, 1), costs));
  EXPECT_THAT(names(trace, "thread_name"),
              ElementsAre("rank 0", "rank 1", "link 0 to 1", "link 1 to 0"));
  const auto events = by_name(events_of(trace, "X"));
  const Json& copy = events.at("copy of 0F0");
  EXPECT_EQ(copy.at("tid"), 3);
  EXPECT_EQ(copy.at("ts"), 1e6);
  EXPECT_EQ(copy.at("dur"), 3e6);
  EXPECT_EQ(copy.at("args").at("arrives_us"), 4.5e6);
}

TEST(ChromeTraceTest, SumsOverReplicasAreOnATrackOfTheirRank) {
  Timeline timeline = simulate(fill_drain(2, 1), costs_of(2));
  timeline.gradient_sums = {{}, {{3, 3.5, 64}, {4, 6, 32}}};
  const std::string trace = to_chrome_trace(timeline);
  EXPECT_THAT(names(trace, "thread_name"),
              ElementsAre("rank 0", "rank 1", "rank 1, sums over replicas"));
  const Json event = by_name(events_of(trace, "X")).at("sum 1");
  EXPECT_EQ(event.at("ts"), 4e6);
  EXPECT_EQ(event.at("dur"), 2e6);
  EXPECT_EQ(event.at("tid"), 3);
  EXPECT_EQ(event.at("args"), Json({{"bytes", 32.0}}));
}

TEST(ChromeTraceTest, MemoryIsACounter) {
  Costs costs = costs_of(1);
  costs.resident_bytes = {100};
  costs.activation_bytes = {10};
  const std::string trace = to_chrome_trace(simulate(fill_drain(1, 1), costs));
  std::vector<std::pair<double, double>> points;
  for (const Json& event : events_of(trace, "C")) {
    EXPECT_EQ(event.at("name"), "memory of rank 0");
    points.emplace_back(event.at("ts"), event.at("args").at("bytes"));
  }
  EXPECT_THAT(points, ElementsAre(Pair(0, 110), Pair(3e6, 100)));
}

TEST(ChromeTraceTest, TimelinesAreProcessesOfTheirOwn) {
  const Timeline timeline = simulate(fill_drain(2, 1), costs_of(2));
  const std::string trace = to_chrome_trace(
      {{"\"predicted\" \\ \n", timeline}, {"measured \xff", timeline}});
  EXPECT_THAT(names(trace, "process_name"),
              ElementsAre("\"predicted\" \\ \n", "measured \xEF\xBF\xBD"));
  std::map<int, int> actions;
  for (const Json& event : events_of(trace, "X")) ++actions[event.at("pid")];
  EXPECT_THAT(actions, ElementsAre(Pair(1, 4), Pair(2, 4)));
  std::set<int> ids;
  for (const Json& event : events_of(trace, "s"))
    ids.insert(event.at("id").get<int>());
  EXPECT_EQ(ids.size(), 4);
}

TEST(ChromeTraceTest, IdleTimeIsNamedByItsCauseOnTheRanksTrack) {
  const Json json = Json::parse(to_chrome_trace(second_of_two()));
  std::vector<std::tuple<std::string, double, double>> idle;
  for (const Json& event : json.at("traceEvents")) {
    if (!is_idle(event)) continue;
    EXPECT_EQ(event.at("tid"), 1);
    idle.emplace_back(event.at("name"), event.at("ts"), event.at("dur"));
  }
  EXPECT_THAT(idle, ElementsAre(std::tuple("remote ranks", 0, 2e6),
                                std::tuple("transfer", 2e6, 1e6),
                                std::tuple("overhead", 3e6, 0.5e6)));
}

TEST(ChromeTraceTest, RanksOfOtherProcessesKeepTheirNumbers) {
  const std::string trace = to_chrome_trace(second_of_two());
  EXPECT_THAT(names(trace, "thread_name"),
              ElementsAre("rank 1", "link 0 to 1"));
  const Json copy = by_name(events_of(trace, "X")).at("copy of 0F0");
  EXPECT_EQ(copy.at("args").at("bytes"), 64);
  EXPECT_EQ(events_of(trace, "C").at(0).at("name"), "memory of rank 1");
}

TEST(ChromeTraceTest, NothingIsATraceToo) {
  EXPECT_THAT(events_of(to_chrome_trace(std::vector<NamedTimeline>()), "X"),
              IsEmpty());
}

}  // namespace
}  // namespace gpipe
