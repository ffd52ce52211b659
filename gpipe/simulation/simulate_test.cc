#include "gpipe/simulation/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/named.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/simulation/bottlenecks.h"
#include "gpipe/simulation/draw.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

TEST(SimulateTest, RecomputesWhileItWaits) {
  Costs costs = equal_costs(2, 1, 2);
  costs.recompute = {1, 1};
  const auto schedule =
      with_recompute(fill_drain(2, 2), [](int) { return true; });
  // Rank 0 runs 0R1 while it waits for the gradient. 0R0 is not hidden.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.ranks[0][2].action, act("0R1"));
  EXPECT_EQ(timeline.ranks[0][2].start, 2);
  EXPECT_EQ(timeline.ranks[0][3].start, 6);
  EXPECT_EQ(timeline.makespan, 11);
  EXPECT_THAT(timeline.idle, ElementsAre(3, 3));
}

TEST(SimulateTest, WaitsForWhatComesFromOtherRanks) {
  Costs costs = equal_costs(3, 1, 1);
  costs.latency = 0.5;
  EXPECT_EQ(simulate(fill_drain(3, 1), costs).makespan, 6 + 4 * 0.5);
  // If all stages are on one rank, there are no copies.
  const Schedule one = parse_schedule("0F0,1F0,1B0,0B0\n");
  EXPECT_EQ(simulate(one, costs).makespan, 4);
}

TEST(SimulateTest, RunsBackwardsInTwoParts) {
  const Schedule schedule = parse_schedule("0F0,0F1,0I0,0I1,0W0,0W1\n");
  Costs costs;
  costs.forward = {1};
  costs.backward_input = {2};
  costs.backward_weight = {4};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.makespan, 14);
  EXPECT_THAT(timeline.peak_in_flight, ElementsAre(2));
}

TEST(SimulateTest, AnOverlappedPairHidesAPartOfTheShorterAction) {
  Costs costs = equal_costs(1, 2, 3);
  for (const double overlap : {0.0, 0.5, 1.0}) {
    costs.overlap = overlap;
    for (const char* csv :
         {"0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "0F0,(0B0;0F1)OVERLAP_F_B,0B1\n"}) {
      const Timeline timeline = simulate(parse_schedule(csv), costs);
      const double end = 7 - 2 * overlap;
      for (const int k : {1, 2}) {
        EXPECT_EQ(timeline.ranks[0][k].start, 2);
        EXPECT_EQ(timeline.ranks[0][k].end, end);
      }
      EXPECT_EQ(timeline.makespan, end + 3);
      EXPECT_THAT(timeline.idle, ElementsAre(0));
      EXPECT_THAT(timeline.peak_in_flight, ElementsAre(2));
    }
  }
}

TEST(SimulateTest, APairBeginsWhenWhatBothNeedIsThere) {
  const Schedule schedule = schedule_with_a_pair(2);
  // Rank 0: 0F0 . . . 0F1&0B0 . . . 0B1. Rank 1: . 1F0 1B0 . . . 1F1 1B1.
  const Timeline timeline = simulate(schedule, equal_costs(2, 1, 2));
  EXPECT_EQ(timeline.ranks[0][1].start, 4);
  EXPECT_EQ(timeline.ranks[0][2].end, 7);
  EXPECT_EQ(timeline.ranks[1][2].start, 7);
  EXPECT_EQ(timeline.makespan, 12);
  EXPECT_THAT(timeline.idle, ElementsAre(6, 6));
}

TEST(SimulateTest, CopiesOfALinkGoOneAfterTheOther) {
  Costs costs = equal_costs(2, 1, 1);
  costs.latency = 0.5;
  costs.bandwidth = 5;
  costs.boundary_bytes = {10};
  const Timeline timeline = simulate(fill_drain(2, 2), costs);
  ASSERT_EQ(timeline.transfers.size(), 4);
  const auto expect = [](const Transfer& transfer, const std::string& action,
                         int from, double start, double sent, double end) {
    EXPECT_EQ(to_string(transfer.action), action);
    EXPECT_EQ(transfer.from, from);
    EXPECT_EQ(transfer.to, 1 - from);
    EXPECT_EQ(transfer.start, start) << action;
    EXPECT_EQ(transfer.sent, sent) << action;
    EXPECT_EQ(transfer.end, end) << action;
  };
  expect(timeline.transfers[0], "0F0", 0, 1, 3, 3.5);
  expect(timeline.transfers[1], "0F1", 0, 3, 5, 5.5);  // made at 2
  expect(timeline.transfers[2], "1B1", 1, 7.5, 9.5, 10);
  expect(timeline.transfers[3], "1B0", 1, 9.5, 11.5, 12);  // made at 8.5
  EXPECT_EQ(timeline.makespan, 13);

  // With unlimited bandwidth, copies do not wait for each other.
  costs.bandwidth = 0;
  EXPECT_EQ(simulate(fill_drain(2, 2), costs).makespan, 7);
}

// Stages 0 and 2 are on rank 0, stage 1 is on rank 1. The outputs of 2B0 and
// 0F1 are both copied from rank 0 to rank 1.
TEST(SimulateTest, ActivationsAndGradientsShareALink) {
  const Schedule schedule = parse_schedule("2F0,2B0,0F1\n1B0,1F1\n");
  Costs costs = equal_costs(3, 1, 1);
  costs.bandwidth = 1;
  costs.boundary_bytes = {2, 3};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.ranks[1][0].start, 2 + 3);
  EXPECT_EQ(timeline.ranks[1][1].start, 2 + 3 + 2);  // made at 3
}

TEST(SimulateTest, NothingIsSentToAStageThatIsNotThere) {
  Costs costs = equal_costs(2, 1, 1);
  costs.latency = 1;
  const Schedule forwards = parse_schedule("0F0,0F1\n1F1\n");
  const Timeline timeline = simulate(forwards, costs);
  ASSERT_EQ(timeline.transfers.size(), 1);
  EXPECT_EQ(to_string(timeline.transfers[0].action), "0F1");
}

TEST(SimulateTest, TakesNoTimeForNothing) {
  const Timeline timeline = simulate(Schedule{{{}, {}}}, Costs());
  EXPECT_EQ(timeline.makespan, 0);
  EXPECT_EQ(timeline.bubble_fraction, 0);
  EXPECT_THAT(timeline.idle, ElementsAre(0, 0));
}

auto refuses(const std::string& a, const std::string& b) {
  return ThrowsMessage<std::invalid_argument>(
      AllOf(HasSubstr(a), HasSubstr(b)));
}

TEST(SimulateTest, NamesWhatCannotBe) {
  const Costs costs = equal_costs(2, 1, 1);
  const auto refuse = [&](const std::vector<std::vector<Action>>& ranks,
                          const std::string& a, const std::string& b) {
    EXPECT_THAT([&] { simulate(Schedule{ranks}, costs); }, refuses(a, b));
  };
  const Action f0 = act("0F0"), b0 = act("0B0");
  refuse({{b0, f0}}, "0B0 of rank 0 waits for 0F0", "never ends");
  refuse({{f0}, {f0}}, "0F0", "twice, on rank 0 and on rank 1");
  refuse({{f0, f0}}, "0F0", "twice");
  refuse({{{-1, ActionKind::kForward, 0}}}, "-1", "from 0");
  refuse({{{0, ActionKind::kForward, -2}}}, "-2", "from 0");
  refuse({{f0}, {b0}}, "stage 0 is on rank 0", "0B0, on rank 1");
  refuse({{act("0F2000000000")}}, "micro-batch 2000000000", "without gaps");
}

TEST(SimulateTest, NamesBlocksThatCannotBe) {
  Costs costs = equal_costs(2, 1, 1);
  costs.recompute = {1, 1};
  const auto refuse = [&](const std::vector<Action>& actions,
                          const std::string& a, const std::string& b) {
    EXPECT_THAT([&] { simulate(Schedule{{actions}}, costs); }, refuses(a, b));
  };
  const Action f0 = act("0F0"), f1 = act("0F1"), b0 = act("0B0"),
               b1 = act("0B1"), r0 = act("0R0");
  refuse({paired(f0)}, "0F0 of rank 0", "with nothing");
  refuse({paired(f0), f1}, "0F0 of rank 0", "with 0F1");
  refuse({f0, f1, paired(r0), b1}, "0R0 of rank 0", "with 0B1");
  refuse({f0, f1, paired(b0), b1}, "0B0 of rank 0", "with 0B1");
  refuse({f0, f1, paired(b0), paired(act("1F0")), b1}, "0B0 of rank 0",
         "with 1F0");
  // A backward cannot be in a block with its own forward.
  refuse({paired(f0), b0}, "0B0 of rank 0 waits for 0F0", "never ends");
}

TEST(SimulateTest, NamesCostsThatAreMissing) {
  Costs costs = equal_costs(2, 1, 1);
  EXPECT_THAT([&] { simulate(fill_drain(3, 1), costs); },
              refuses("no forward cost of stage 2", "2F0"));
  const auto recomputing =
      with_recompute(fill_drain(2, 1), [](int) { return true; });
  costs.recompute.clear();
  EXPECT_THAT([&] { simulate(recomputing, costs); },
              refuses("no recompute cost of stage 0", "0R0"));
  costs.bandwidth = 1;
  EXPECT_THAT([&] { simulate(fill_drain(2, 1), costs); },
              refuses("no boundary_bytes cost of stage 0", "0 is unlimited"));
  costs.boundary_bytes = {1};
  costs.activation_bytes = {1};
  EXPECT_THAT([&] { simulate(fill_drain(2, 1), costs); },
              refuses("no activation_bytes cost of stage 1", "none at all"));
}

// ---- Copies to and from the host, in the simulator and in all pictures.

// Returns costs of 1 s for F and R, 2 s for B = I + W, and 10 bytes that are
// held and copied. A copy takes `seconds`; 0: no time.
Costs copying_costs(int stages, double seconds) {
  Costs costs = costs_of(stages);
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
  EXPECT_THAT(pairs(one_wait().memory[0]),
              ElementsAre(Pair(0, 10), Pair(1, 20), Pair(1.5, 10), Pair(2, 20),
                          Pair(4.5, 10), Pair(6.5, 0)));
  EXPECT_THAT(one_wait().peak_bytes, ElementsAre(20));
}

TEST(HostCopyTest, OfActionsWithoutDurationKeepsTheirOrder) {
  Costs costs = equal_costs(1, 0, 0);
  costs.activation_bytes = {10};
  const Timeline timeline =
      simulate(parse_schedule("0F0,0O0,0F1,0F2,0B2,0L0,0B1,0B0\n"), costs);
  EXPECT_THAT(timeline.peak_bytes, ElementsAre(20));
  EXPECT_THAT(pairs(timeline.memory[0]), ElementsAre(Pair(0, 0)));
}

TEST(HostCopyTest, MayBeAPartOfTheActivations) {
  Costs costs = copying_costs(1, 0.5);
  costs.activation_bytes = {14};
  costs.offload_bytes = {10};
  const Timeline timeline =
      simulate(parse_schedule("0F0,0O0,0L0,0I0,0W0\n"), costs);
  EXPECT_THAT(copies(timeline, 0), ElementsAre("0O0 1-1.5", "0L0 1.5-2"));
  EXPECT_THAT(pairs(timeline.memory[0]),
              ElementsAre(Pair(0, 14), Pair(1.5, 14), Pair(4, 0)));
  costs.weight_activation_bytes = {3};
  EXPECT_THAT(
      pairs(simulate(parse_schedule("0F0,0O0,0L0,0I0,0W0\n"), costs).memory[0]),
      ElementsAre(Pair(0, 14), Pair(1.5, 14), Pair(3, 3), Pair(4, 0)));
}

TEST(HostCopyTest, OfARecomputedCellComesAfterTheRecompute) {
  Costs costs = copying_costs(1, 0.5);
  costs.input_bytes = {1};
  const Timeline timeline =
      simulate(parse_schedule("0F0,0R0,0O0,0F1,0L0,0B0,0B1\n"), costs);
  EXPECT_THAT(copies(timeline, 0), ElementsAre("0O0 2-2.5", "0L0 3-3.5"));
  EXPECT_THAT(pairs(timeline.memory[0]),
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
  EXPECT_THAT(steps(timeline),
              ElementsAre("0F0 0-1", "0O0 1-2.5", "0L0 2.5-4", "0B0 4-6",
                          "0L1 6-7.5", "0B1 7.5-9.5"));
  EXPECT_EQ(timeline.makespan, 9.5);
}

TEST(HostCopyTest, OnTheCriticalPathMayWaitForTheLink) {
  const Timeline timeline =
      simulate(parse_schedule("0F0,0O0,0F1,0O1,0L1,0L0,0B1,0B0\n"),
               copying_costs(1, 2.5));
  EXPECT_THAT(steps(timeline),
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
    return pairs(simulate(parse_schedule(csv), costs).memory[0]);
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

TEST(SharedCoresTest, TimesBeyondDoublesAreRefused) {
  EXPECT_THAT(
      [] { simulate_on_cores(fill_drain(3, 3), equal_costs(3, 1, 2), 1e-310); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("must be finite")));
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

TEST(SharedCoresTest, OneCoreDoesAllTheWorkOneAfterTheOther) {
  const auto timeline =
      simulate_on_cores(fill_drain(4, 8), equal_costs(4, 1, 2), 1);
  EXPECT_NEAR(timeline.makespan, 4 * 8 * 3, 1e-9);
}

TEST(SharedCoresTest, WithACoreForEachItIsSimulate) {
  const Schedule schedule = fill_drain(3, 5);
  const Costs costs = equal_costs(3, 1, 2);
  EXPECT_EQ(simulate_on_cores(schedule, costs, 3).makespan,
            simulate(schedule, costs).makespan);
  EXPECT_EQ(
      simulate_on_cores(schedule, costs, 1, {false, false, true}).makespan,
      simulate(schedule, costs).makespan);
}

TEST(SharedCoresTest, RanksThatWorkAtATimeShareEqually) {
  // With one micro-batch, only one of the two ranks works at a time.
  EXPECT_EQ(
      simulate_on_cores(fill_drain(2, 1), equal_costs(2, 1, 1), 1).makespan, 4);
  // Two micro-batches on one core: 0F0 runs from 0 to 1, then 0F1 and 1F0 share
  // the core until 3, then 1F1 runs until 4.
  const auto timeline =
      simulate_on_cores(select(fill_drain(2, 2),
                               [](const Action& action) {
                                 return action.kind == ActionKind::kForward;
                               }),
                        equal_costs(2, 1, 1), 1);
  EXPECT_EQ(timeline.ranks[0][1].start, 1);
  EXPECT_EQ(timeline.ranks[0][1].end, 3);
  EXPECT_EQ(timeline.ranks[1][0].start, 1);
  EXPECT_EQ(timeline.ranks[1][0].end, 3);
  EXPECT_EQ(timeline.makespan, 4);
}

TEST(SharedCoresTest, CostsOfAnyScaleGiveTheSameShares) {
  // Two forwards of 1 and two of 9 units on one core.
  const Schedule schedule = parse_schedule("0F0,0F1\n1F0,1F1\n");
  for (const double unit : {1.0, 1e-15, 1e-300, 1e300}) {
    Costs costs;
    costs.forward = {unit, 9 * unit};
    EXPECT_DOUBLE_EQ(simulate_on_cores(schedule, costs, 1).makespan, 20 * unit)
        << unit;
  }
}

TEST(SharedCoresTest, RanksWithADeviceOfTheirOwnTakeNoCore) {
  // The rank in the middle has its own device and uses no core, as a copy
  // would.
  const Costs costs = equal_costs(3, 1, 1);
  const auto timeline =
      simulate_on_cores(fill_drain(3, 6), costs, 2, {true, false, true});
  EXPECT_EQ(timeline.makespan, simulate(fill_drain(3, 6), costs).makespan);
}

TEST(SharedCoresTest, IsBetweenTheBoundsAndFallsWithMoreCores) {
  std::mt19937 random(0);
  std::uniform_int_distribution<int> small(1, 6);
  std::uniform_real_distribution<double> cost(0, 2);
  for (int k = 0; k < 500; ++k) {
    const auto names = schedule_names();
    const std::string name = names[random() % names.size()];
    const int per_rank = fixed_stages_per_rank(name).value_or(2);
    const int ranks = small(random);
    const Schedule schedule =
        named_schedule(name, ranks, 2 * ranks + small(random), per_rank);
    Costs costs;
    for (int s = 0; s < ranks * per_rank; ++s) {
      costs.forward.push_back(cost(random));
      costs.backward_input.push_back(cost(random));
      costs.backward_weight.push_back(cost(random));
      costs.backward.push_back(costs.backward_input.back() +
                               costs.backward_weight.back());
    }
    const Timeline alone = simulate(schedule, costs);
    double work = 0;
    for (const double idle : alone.idle) work += alone.makespan - idle;
    for (int cores = 1; cores < ranks; ++cores) {
      const double shared = simulate_on_cores(schedule, costs, cores).makespan;
      if (name != "dualpipe-v") {  // only simulate() runs its pairs as blocks
        EXPECT_GE(shared, alone.makespan * (1 - 1e-9)) << name;
      }
      EXPECT_GE(shared, work / cores * (1 - 1e-9)) << name;
      EXPECT_LE(shared, (work / cores + alone.makespan) * (1 + 1e-9)) << name;
    }
  }
}

TEST(SharedCoresTest, RefusesWhatItDoesNotConsider) {
  Costs costs = equal_costs(2, 1, 1);
  EXPECT_THROW(simulate_on_cores(fill_drain(2, 2), costs, 0),
               std::invalid_argument);
  EXPECT_THROW(simulate_on_cores(fill_drain(2, 2), costs, 1, {true}),
               std::invalid_argument);
  costs.latency = 1;
  EXPECT_THROW(simulate_on_cores(fill_drain(2, 2), costs, 1),
               std::invalid_argument);
}

}  // namespace
}  // namespace gpipe
