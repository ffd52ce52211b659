// Copies to and from the host, in the simulator and in all pictures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/generators/named.h"
#include "gpipe/schedule/generators/one_forward_one_backward.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/simulation/critical_path.h"
#include "gpipe/simulation/draw/chrome_trace.h"
#include "gpipe/simulation/draw/svg.h"
#include "gpipe/simulation/draw/timeline_text.h"
#include "gpipe/simulation/idle.h"
#include "gpipe/simulation/shared_cores.h"
#include "gpipe/simulation/simulate.h"

namespace gpipe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

// Returns costs of 1 s for F and R, 2 s for B = I + W, and 10 bytes that are
// held and copied. A copy takes `seconds`; 0: no time.
Costs copying_costs(int stages, double seconds) {
  Costs costs;
  costs.forward.assign(stages, 1);
  costs.backward.assign(stages, 2);
  costs.backward_input.assign(stages, 1);
  costs.backward_weight.assign(stages, 1);
  costs.recompute.assign(stages, 1);
  costs.activation_bytes.assign(stages, 10);
  costs.host_bandwidth = seconds > 0 ? 10 / seconds : 0;
  return costs;
}

// Returns "0O0 1-1.5" and so on for the copies of a rank.
std::vector<std::string> copies(const Timeline& timeline, std::size_t rank) {
  std::vector<std::string> result;
  for (const HostCopy& copy : timeline.host_copies.at(rank)) {
    std::ostringstream text;
    text << to_string(copy.action) << " " << copy.start << "-" << copy.end;
    result.push_back(text.str());
  }
  return result;
}

std::vector<std::string> path(const Timeline& timeline) {
  std::vector<std::string> result;
  for (const CriticalStep& step : critical_path(timeline)) {
    std::ostringstream text;
    text << to_string(step.action) << " " << step.start << "-" << step.end;
    result.push_back(text.str());
  }
  return result;
}

std::vector<std::pair<double, double>> memory(const Timeline& timeline,
                                              std::size_t rank) {
  std::vector<std::pair<double, double>> result;
  for (const MemoryPoint& point : timeline.memory.at(rank)) {
    result.emplace_back(point.time, point.bytes);
  }
  return result;
}

// One rank. 0B0 waits for the copy back of half a second.
Timeline one_wait() {
  return simulate(parse_schedule("0F0,0O0,0F1,0L0,0B0,0B1\n"),
                  copying_costs(1, 0.5));
}

TEST(HostCopyTest, RunsBesideComputeAndHoldsUpItsBackward) {
  const Timeline timeline = one_wait();
  EXPECT_THAT(copies(timeline, 0), ElementsAre("0O0 1-1.5", "0L0 2-2.5"));
  EXPECT_EQ(timeline.host_copies[0][0].place, 1u);
  EXPECT_EQ(timeline.host_copies[0][1].place, 2u);
  EXPECT_EQ(timeline.ranks[0].size(), 4u);
  EXPECT_EQ(timeline.ranks[0][2].start, 2.5);
  EXPECT_EQ(timeline.makespan, 6.5);
  EXPECT_THAT(timeline.idle, ElementsAre(0.5));
}

TEST(HostCopyTest, FreesMemoryAtItsEndAndTakesItAtItsStart) {
  EXPECT_THAT(memory(one_wait(), 0),
              ElementsAre(Pair(0, 10), Pair(1, 20), Pair(1.5, 10), Pair(2, 20),
                          Pair(4.5, 10), Pair(6.5, 0)));
  EXPECT_THAT(one_wait().peak_bytes, ElementsAre(20));
}

TEST(HostCopyTest, MayBeAPartOfTheActivations) {
  Costs costs = copying_costs(1, 0.5);
  costs.activation_bytes = {14};
  costs.offload_bytes = {10};
  const Timeline timeline =
      simulate(parse_schedule("0F0,0O0,0L0,0I0,0W0\n"), costs);
  EXPECT_THAT(copies(timeline, 0), ElementsAre("0O0 1-1.5", "0L0 1.5-2"));
  EXPECT_THAT(memory(timeline, 0),
              ElementsAre(Pair(0, 14), Pair(1.5, 14), Pair(4, 0)));
  costs.weight_activation_bytes = {3};
  EXPECT_THAT(
      memory(simulate(parse_schedule("0F0,0O0,0L0,0I0,0W0\n"), costs), 0),
      ElementsAre(Pair(0, 14), Pair(1.5, 14), Pair(3, 3), Pair(4, 0)));
}

TEST(HostCopyTest, OfARecomputedCellComesAfterTheRecompute) {
  Costs costs = copying_costs(1, 0.5);
  costs.input_bytes = {1};
  const Timeline timeline =
      simulate(parse_schedule("0F0,0R0,0O0,0F1,0L0,0B0,0B1\n"), costs);
  EXPECT_THAT(copies(timeline, 0), ElementsAre("0O0 2-2.5", "0L0 3-3.5"));
  EXPECT_THAT(memory(timeline, 0),
              ElementsAre(Pair(0, 1), Pair(1, 11), Pair(2, 21), Pair(2.5, 11),
                          Pair(3, 21), Pair(5.5, 10), Pair(7.5, 0)));
}

// The copies of each direction take 1.5 s, one after the other.
TEST(HostCopyTest, WaitsForItsLinkAndTheCopyBackForTheCopyThere) {
  const Timeline timeline =
      simulate(parse_schedule("0F0,0O0,0F1,0O1,0L0,0B0,0L1,0B1\n"),
               copying_costs(1, 1.5));
  EXPECT_THAT(copies(timeline, 0),
              ElementsAre("0O0 1-2.5", "0O1 2.5-4", "0L0 2.5-4", "0L1 6-7.5"));
  EXPECT_THAT(path(timeline),
              ElementsAre("0F0 0-1", "0O0 1-2.5", "0L0 2.5-4", "0B0 4-6",
                          "0L1 6-7.5", "0B1 7.5-9.5"));
  EXPECT_EQ(timeline.makespan, 9.5);
}

TEST(HostCopyTest, OnTheCriticalPathMayWaitForTheLink) {
  const Timeline timeline =
      simulate(parse_schedule("0F0,0O0,0F1,0O1,0L1,0L0,0B1,0B0\n"),
               copying_costs(1, 2.5));
  EXPECT_THAT(path(timeline),
              ElementsAre("0F0 0-1", "0O0 1-3.5", "0O1 3.5-6", "0L1 6-8.5",
                          "0L0 8.5-11", "0B0 11-13"));
  EXPECT_EQ(timeline.makespan, 13);
}

TEST(HostCopyTest, IsIdleTimeOfTransfers) {
  const auto parts = idle_parts(one_wait());
  EXPECT_EQ(parts[0].transfer, 0.5);
  EXPECT_EQ(parts[0].total(), 0.5);
}

// Rank 1 waits for 0.5 s for its copy. Rank 0 waits for rank 1, and so for the
// same copy.
TEST(HostCopyTest, IsIdleTimeOfRanksThatWaitForItsRank) {
  const Timeline timeline = simulate(
      parse_schedule("0F0,0B0\n1F0,1O0,1L0,1B0\n"), copying_costs(2, 0.25));
  EXPECT_EQ(timeline.makespan, 6.5);
  const auto parts = idle_parts(timeline);
  for (const IdleParts& each : parts) {
    EXPECT_EQ(each.transfer, 0.5);
    EXPECT_EQ(each.schedule, 3);
    EXPECT_EQ(each.total(), 3.5);
  }
}

TEST(HostCopyTest, TakesNoTimeWithoutABandwidth) {
  for (const std::string& name : schedule_names()) {
    if (name == "forward-only") continue;
    const Schedule plain =
        named_schedule(name, 3, 6, fixed_stages_per_rank(name).value_or(2));
    const Costs costs = copying_costs(num_stages(plain), 0);
    const Timeline without = simulate(plain, costs);
    for (const int ahead : {0, 1, 3}) {
      const Timeline with =
          simulate(with_offload(
                       plain, [](int, int) { return true; }, ahead),
                   costs);
      EXPECT_EQ(with.makespan, without.makespan) << name;
      for (std::size_t r = 0; r < with.ranks.size(); ++r) {
        ASSERT_EQ(with.ranks[r].size(), without.ranks[r].size()) << name;
        for (std::size_t k = 0; k < with.ranks[r].size(); ++k) {
          EXPECT_EQ(with.ranks[r][k].start, without.ranks[r][k].start) << name;
        }
        EXPECT_LE(with.peak_bytes[r], without.peak_bytes[r]) << name;
        EXPECT_EQ(with.memory[r].back().bytes, 0) << name;
      }
    }
  }
}

// Rank 0 of 1F1B holds 8 micro-batches, and with offload 3: one that is being
// copied there, one that is back, and the one of the running forward.
TEST(HostCopyTest, ShorterThanForwardsCostsNoTimeIn1F1B) {
  const Schedule plain = one_forward_one_backward(8, 32);
  const Schedule offloaded =
      with_offload(plain, distant_cells(plain, 2), /*ahead=*/1);
  for (const double seconds : {0.25, 0.75, 1.0}) {
    const Costs costs = copying_costs(8, seconds);
    const Timeline without = simulate(plain, costs);
    const Timeline with = simulate(offloaded, costs);
    EXPECT_EQ(without.makespan, (32 + 8 - 1) * 3);
    EXPECT_EQ(with.makespan, without.makespan) << seconds;
    EXPECT_EQ(without.peak_bytes[0], 80);
    EXPECT_EQ(with.peak_bytes[0], 30) << seconds;
  }
}

TEST(HostCopyTest, MayBeginOrEndInAPartOfASchedule) {
  const Costs costs = copying_costs(1, 0.5);
  const auto memory_of = [&](const char* csv) {
    return memory(simulate(parse_schedule(csv), costs), 0);
  };
  EXPECT_THAT(memory_of("0F0,0O0\n"), ElementsAre(Pair(0, 10), Pair(1.5, 0)));
  EXPECT_THAT(memory_of("0L0,0B0\n"), ElementsAre(Pair(0, 10), Pair(2.5, 0)));
  EXPECT_THAT(memory_of("0O0,0L0,0B0\n"),
              ElementsAre(Pair(0, 10), Pair(0.5, 10), Pair(3, 0)));
}

TEST(HostCopyTest, NeedsBytesForABandwidth) {
  Costs costs = copying_costs(2, 0.5);
  costs.activation_bytes.clear();
  const Schedule schedule = parse_schedule("0F0,0O0,0L0,0B0\n");
  EXPECT_THAT([&] { simulate(schedule, costs); },
              ThrowsMessage<std::invalid_argument>(
                  "there is no activation_bytes cost of stage 0, which 0O0 "
                  "needs (costs: 0): give one for each stage"));
  costs.offload_bytes = {10};
  EXPECT_EQ(simulate(schedule, costs).makespan, 4);
}

TEST(HostCopyTest, TakesNoTimeOnSharedCores) {
  const Schedule schedule = parse_schedule("0F0,0O0,0L0,0B0\n1F0,1B0\n");
  const Timeline timeline = simulate_on_cores(schedule, copying_costs(2, 0), 1);
  EXPECT_EQ(timeline.makespan, 6);
  EXPECT_EQ(timeline.ranks[0].size(), 2u);
  EXPECT_THAT(
      [&] { simulate_on_cores(schedule, copying_costs(2, 1), 1); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("host_bandwidth")));
}

TEST(HostCopyTest, HasLinesInTheText) {
  EXPECT_EQ(to_text(one_wait(), 26),
            "           0                    6.5 s\n"
            "rank 0    |0F0-0F1-..0B0-----0B1-----| idle 7.7 %\n"
            "to host   |....O-....................|\n"
            "from host |........L-................|\n");
}

TEST(HostCopyTest, HasTwoTracksInTheTrace) {
  const auto json = nlohmann::json::parse(to_chrome_trace(one_wait()));
  std::vector<std::string> tracks;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("name") == "thread_name") {
      tracks.push_back(event.at("args").at("name"));
    }
    if (event.at("name") != "0L0") continue;
    EXPECT_EQ(event.at("tid"), 3);
    EXPECT_EQ(event.at("ts"), 2e6);
    EXPECT_EQ(event.at("dur"), 0.5e6);
    EXPECT_EQ(event.at("cat"), "copy from the host");
  }
  EXPECT_THAT(tracks,
              ElementsAre("rank 0", "rank 0 to host", "rank 0 from host"));
}

TEST(HostCopyTest, HasAStripBelowTheLaneInThePicture) {
  // 650 pixels show 6.5 s, and begin at x = 70. The lane ends at y = 58.
  const std::string svg = to_svg(one_wait(), 200 + 650);
  EXPECT_THAT(svg, HasSubstr("class=\"box O\" x=\"170.00\" y=\"58.00\" "
                             "width=\"50.00\" height=\"8.00\"><title>0O0: copy "
                             "to the host of micro-batch 0, stage 0\n"
                             "1 s to 1.5 s, takes 500 ms</title>"));
  EXPECT_THAT(svg, HasSubstr("class=\"box L\" x=\"270.00\" y=\"66.00\" "
                             "width=\"50.00\" height=\"8.00\">"));
  EXPECT_THAT(svg, HasSubstr(">O: copy to the host<"));
}

}  // namespace
}  // namespace gpipe
