#include "gpipe/simulation/draw/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
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
  const Schedule schedule = {
      {{{0, ActionKind::kForward, 0},
        {0, ActionKind::kForward, 1, /*fused_with_next=*/true},
        {0, ActionKind::kBackward, 0},
        {0, ActionKind::kBackward, 1}}}};
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
