#include "balancing/planner/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "balancing/planner/cut.h"
#include "balancing/planner/evaluate.h"
#include "balancing/planner/problem.h"
#include "balancing/planner/testing.h"
#include "gpipe/schedule.h"

namespace gpipe::balancing::planner {
namespace {

using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEqual = 1e-9;

// Returns the seconds of the best cut of each candidate, in their order: all
// cuts are simulated.
std::vector<double> brute_force(const Problem& problem) {
  std::vector<double> best;
  for (const Candidate& candidate : candidates(problem)) {
    const Blocks blocks(problem, problem.workloads[candidate.workload]);
    Evaluator evaluator(problem, candidate, blocks);
    double least = kInfinity;
    for_each_balance(
        blocks.layers(), static_cast<int64_t>(evaluator.rank_of_stage().size()),
        [&](const Balance& balance) {
          const double seconds = evaluator.seconds(balance);
          least = std::min(least, seconds);
          EXPECT_LE(lower_bound(problem, candidate, blocks), seconds);
        });
    best.push_back(least);
  }
  return best;
}

std::string name_of(const Candidate& candidate) {
  return candidate.schedule + " " + std::to_string(candidate.stages_per_rank) +
         " " + std::to_string(candidate.workload) + " " +
         to_string(candidate.recompute) + (candidate.offload ? " o" : "");
}

// Returns the first candidate whose time is the smallest, or none if none fits.
std::optional<std::string> first_best(const Problem& problem,
                                      const std::vector<double>& seconds) {
  double least = kInfinity;
  for (const double each : seconds) least = std::min(least, each);
  if (std::isinf(least)) return std::nullopt;
  for (std::size_t k = 0;; ++k) {
    if (seconds[k] <= least * (1 + kEqual)) {
      return name_of(candidates(problem)[k]);
    }
  }
}

TEST(ChooseTest, EqualsBruteForceOn200RandomProblems) {
  int without = 0, simulations = 0, all = 0;
  std::map<std::string, int> schedules;
  Effort local_searches;
  local_searches.all_cuts = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = random_problem(seed);
    const std::vector<double> expected = brute_force(problem);
    const auto name = first_best(problem, expected);
    const auto choice = choose(problem);
    ASSERT_EQ(choice.has_value(), name.has_value());
    // Local searches, with no candidate whose cuts are all tried, are as good.
    const auto searched = choose(problem, local_searches);
    ASSERT_EQ(searched.has_value(), name.has_value());
    if (!choice) {
      ++without;
      continue;
    }
    EXPECT_NEAR(searched->best.seconds, choice->best.seconds,
                kEqual * choice->best.seconds);
    EXPECT_EQ(name_of(choice->best.candidate), *name);
    const double least = *std::min_element(expected.begin(), expected.end());
    EXPECT_NEAR(choice->best.seconds, least, kEqual * least);
    EXPECT_NEAR(
        choice->prediction.timeline.makespan + choice->prediction.sum_seconds,
        least, kEqual * least);
    for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
      EXPECT_LE(choice->prediction.peak_bytes[r],
                problem.ranks[r].memory_bytes);
    }
    // Each family's best is exact, too.
    std::map<std::pair<std::string, int64_t>, double> families;
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const Candidate& each = choice->tried[k].candidate;
      if (each.offload || std::isinf(expected[k])) continue;
      double& seconds =
          families.try_emplace({each.schedule, each.stages_per_rank}, kInfinity)
              .first->second;
      seconds = std::min(seconds, expected[k]);
    }
    for (const Tried& family : choice->families) {
      if (family.candidate.offload) continue;
      const double seconds = families.at(
          {family.candidate.schedule, family.candidate.stages_per_rank});
      EXPECT_NEAR(family.seconds, seconds, kEqual * seconds);
    }
    ++schedules[choice->best.candidate.schedule];
    simulations += static_cast<int>(choice->simulations);
    all += static_cast<int>(expected.size());
  }
  // The problems are not all of one sort.
  EXPECT_GT(without, 5);
  EXPECT_LT(without, 60);
  EXPECT_GT(schedules.size(), 8);
  EXPECT_LT(simulations, 5 * all);
}

TEST(ChooseTest, TakesTheSimplestOfEqualCandidates) {
  // One micro-batch: all schedules with one stage per rank take as long.
  Problem problem =
      simple_problem({1, 1, 1, 1}, 2, 1, {"eager-1f1b", "1f1b", "fill-drain"});
  auto choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->best.candidate.schedule, "fill-drain");
  EXPECT_EQ(choice->best.candidate.stages_per_rank, 1);
  // On one rank, more micro-batches with the same work are no faster.
  problem = simple_problem({2, 2}, 1, 1, {"fill-drain", "1f1b"});
  problem.workloads.push_back(simple_problem({1, 1}, 1, 2, {}).workloads[0]);
  problem.offload = true;
  std::reverse(problem.workloads.begin(), problem.workloads.end());
  choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->best.candidate.workload, 1);
  EXPECT_FALSE(choice->best.candidate.offload);
}

TEST(ChooseTest, FindsTheClosedFormsOfTheFamilies) {
  // f = i = w = 2 per rank, 8 micro-batches on 4 ranks.
  const auto choice = choose(simple_problem(
      {1, 1, 1, 1, 1, 1, 1, 1}, 4, 8,
      {"fill-drain", "interleaved-1f1b", "zb-h1", "zb-h2", "zbv"}));
  ASSERT_TRUE(choice);
  std::map<std::string, double> seconds;
  for (const Tried& family : choice->families) {
    // The fastest of a schedule comes first.
    seconds.emplace(family.candidate.schedule, family.seconds);
  }
  EXPECT_EQ(seconds["fill-drain"], (8 + 3) * 6);
  EXPECT_EQ(seconds["interleaved-1f1b"], (8 * 2 + 3) * 3);
  EXPECT_EQ(seconds["zb-h1"], 8 * 6 + 3 * 2);
  EXPECT_EQ(seconds["zb-h2"], 8 * 6 + 3 * 2);
  EXPECT_EQ(seconds["zbv"], 2 * 8 * 3 + 3 * 1);
  EXPECT_EQ(choice->best.candidate.schedule, "zbv");
  EXPECT_THAT(choice->best.balance, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
}

TEST(ChooseTest, RecomputesOnlyWhereMemoryIsShort) {
  // The first rank of 1F1B holds two micro-batches, the second one.
  Problem problem = simple_problem({1, 1, 1, 1}, 2, 8, {"1f1b"});
  problem.recomputes = {Checkpoint::kNever, Checkpoint::kAlways, kWhereNeeded};
  problem.stages_per_rank = {1};
  const double parameters = 2 * 8;
  for (Rank& rank : problem.ranks) rank.memory_bytes = parameters + 2 * 20 - 1;
  const auto choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->best.candidate.recompute, kWhereNeeded);
  EXPECT_THAT(choice->prediction.peak_bytes,
              ElementsAre(parameters + 20, parameters + 20));
  int recomputes = 0;
  for (const auto& actions : choice->prediction.schedule.ranks) {
    for (const Action& action : actions) {
      recomputes += action.kind == ActionKind::kRecompute;
    }
  }
  EXPECT_EQ(recomputes, 8);
}

TEST(ChooseTest, RecomputesAllButARankWithOneMicrobatchInFlight) {
  // Of more than 2000 cuts the search looks only at some. With recompute, a
  // stage of k layers holds k bytes and one more per micro-batch in flight: up
  // to 4, 3, 2 and 1. The first takes no input, the last one is not recomputed.
  Problem problem = simple_problem(std::vector<double>(31, 1), 4, 4, {"1f1b"});
  problem.recomputes = {Checkpoint::kNever, Checkpoint::kAlways, kWhereNeeded};
  problem.stages_per_rank = {1};
  for (Layer& layer : problem.workloads[0].layers) {
    layer.output_bytes = 1;
    layer.trained_bytes = 0;
  }
  for (SavedBytes& each : problem.workloads[0].saved) each.bytes = 1;
  for (Rank& rank : problem.ranks) rank.memory_bytes = 9;
  const auto choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->best.candidate.recompute, kWhereNeeded);
  EXPECT_THAT(choice->best.balance, ElementsAre(9, 6, 7, 9));
  EXPECT_THAT(choice->prediction.peak_bytes, ElementsAre(9, 9, 9, 9));
}

TEST(ChooseTest, OffloadsWhatRecomputingWouldSlowDown) {
  Problem problem = simple_problem({1, 1, 1, 1}, 2, 8, {"fill-drain"});
  problem.recomputes = {Checkpoint::kNever, Checkpoint::kAlways};
  problem.offload = true;
  for (Rank& rank : problem.ranks) {
    rank.memory_bytes = 170;
    rank.host_bandwidth = 20;  // a copy takes 1 s, a forward 2 s
  }
  auto choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_TRUE(choice->best.candidate.offload);
  EXPECT_EQ(choice->best.seconds, (8 + 1) * 6);
  EXPECT_LE(choice->prediction.peak_bytes[0], 170);
  for (Rank& rank : problem.ranks) rank.host_bandwidth = 0.5;
  choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_FALSE(choice->best.candidate.offload);
}

// 2,024 cuts: too many to try all. The most even one has too many heavy layers
// on the first rank.
TEST(ChooseTest, FindsACutWithOffloadWhereTheMostEvenOneDoesNotFit) {
  Problem problem = simple_problem(std::vector<double>(25, 1), 4, 8, {"1f1b"});
  Workload& workload = problem.workloads[0];
  for (std::size_t k = 0; k < workload.layers.size(); ++k) {
    workload.layers[k].trained_bytes = k < 6 ? 40 : 4;
    workload.saved[k].bytes = 20;
  }
  problem.offload = true;
  for (Rank& rank : problem.ranks) rank.host_bandwidth = 1e3;
  const std::vector<Candidate> all = candidates(problem);
  const Candidate& offloads = all.back();
  ASSERT_TRUE(offloads.offload);
  const Blocks blocks(problem, workload);
  for (Rank& rank : problem.ranks) rank.memory_bytes = 1;
  const double most =
      Evaluator(problem, offloads, blocks).fullness({3, 3, 6, 13});
  for (Rank& rank : problem.ranks) rank.memory_bytes = 1.05 * most;
  EXPECT_GT(Evaluator(problem, offloads, blocks).fullness({6, 6, 6, 7}), 1);
  const auto choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_TRUE(choice->best.candidate.offload);
}

// Without recomputes the most even cut needs four times the memory, but other
// cuts fit. All of them take longer than the most even one with recomputes.
TEST(ChooseTest, FindsACutThatFitsThoughAnotherCandidateIsFaster) {
  Problem problem = simple_problem({1, 1, 2, 2, 2}, 2, 8, {"looped-bfs"});
  problem.stages_per_rank = {2};
  problem.recomputes = {Checkpoint::kAlways, Checkpoint::kNever};
  Workload& workload = problem.workloads[0];
  constexpr double kSaved[] = {0, 100, 1, 1, 0};
  for (std::size_t k = 0; k < workload.layers.size(); ++k) {
    Layer& layer = workload.layers[k];
    layer.recompute = layer.output_bytes = layer.trained_bytes = 0;
    workload.saved[k].bytes = kSaved[k];
  }
  problem.ranks[0].memory_bytes = 200;
  const auto choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->best.candidate.recompute, Checkpoint::kAlways);
  EXPECT_EQ(choice->best.seconds, (8 * 2 + 1) * 6);
  const Tried& slower = choice->tried[1];
  EXPECT_EQ(slower.candidate.recompute, Checkpoint::kNever);
  ASSERT_THAT(slower.balance, ElementsAre(1, 1, 1, 2));
  const Blocks blocks(problem, workload);
  Evaluator evaluator(problem, slower.candidate, blocks);
  EXPECT_EQ(slower.seconds, evaluator.seconds(slower.balance));
}

TEST(ChooseTest, GivesSlowLinksFewCrossings) {
  // Rank 0 and 1 share a fast link, rank 1 and 2 a slow one. The layer that
  // passes on little is the last one before the slow link.
  Problem problem = simple_problem({1, 1, 1, 1, 1, 1}, 3, 4, {"fill-drain"});
  problem.links.assign(9, {0, 0.01});
  problem.links[1 * 3 + 2] = problem.links[2 * 3 + 1] = {0, 1};
  problem.workloads[0].layers[2].output_bytes = 0;
  const auto choice = choose(problem);
  ASSERT_TRUE(choice);
  ASSERT_EQ(choice->best.balance.size(), 3);
  EXPECT_EQ(choice->best.balance[0] + choice->best.balance[1], 3);
}

TEST(ChooseTest, MovesParametersToRanksThatAddThemUpFaster) {
  // Six equal layers, of which the second has all 100 bytes. Ranks 0 and 2 need
  // 1 s for each byte, rank 1 none: it gets that layer, though an even cut
  // gives it to rank 0.
  Problem problem = simple_problem({1, 1, 1, 1, 1, 1}, 3, 2, {"fill-drain"});
  for (Layer& layer : problem.workloads[0].layers) layer.trained_bytes = 0;
  problem.workloads[0].layers[1].trained_bytes = 100;
  auto choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->best.balance, ElementsAre(2, 2, 2));
  problem.ranks[0].sum = problem.ranks[2].sum = {0, 1};
  choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->best.balance[0], 1);
  EXPECT_EQ(choice->prediction.sum_seconds, 0);
  EXPECT_EQ(choice->best.seconds, choice->prediction.timeline.makespan);
  // A sum that has only a latency cannot be avoided.
  for (Rank& rank : problem.ranks) rank.sum.latency = 5;
  const double before = choice->best.seconds;
  choice = choose(problem);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->prediction.sum_seconds, 5);
  EXPECT_EQ(choice->best.seconds, before + 5);
}

TEST(ChooseTest, ImprovesCutsThatAreTooManyToTryAll) {
  // The most even cut has to send much over slow links. Better cuts have less
  // even stages.
  Dice dice(3);
  Problem problem;
  problem.workloads.push_back(random_workload(dice, 60, 16));
  problem.ranks.resize(6);
  problem.schedules = {"zb-h1", "interleaved-1f1b"};
  problem.links = {{1, 12}};
  const auto improved = choose(problem);
  Effort none;
  none.actions_to_improve = 0;
  const auto started = choose(problem, none);
  ASSERT_TRUE(improved && started);
  EXPECT_LT(improved->best.seconds, started->best.seconds);
  EXPECT_GE(improved->best.seconds, improved->best.lower_bound);
}

TEST(ChooseTest, TriesAllCutsWhereOnlyTheImprovementHasEnoughActions) {
  // Three cuts, and only the most even one has a slow copy.
  Problem problem = simple_problem({1, 1, 1, 1}, 2, 1, {"1f1b"});
  for (Layer& layer : problem.workloads[0].layers) layer.output_bytes = 0;
  problem.workloads[0].layers[1].output_bytes = 100;
  problem.links = {{0, 1}};
  // A step has 4 actions. A candidate may simulate two cuts, and each of the 6
  // improvements three.
  Effort effort;
  effort.actions_per_candidate = 2 * 4;
  effort.actions_to_improve = 6 * 3 * 4;
  const auto choice = choose(problem, effort);
  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->best.balance, ElementsAre(1, 3));
  EXPECT_EQ(choice->best.seconds, 4 * 3);
}

TEST(LeastMemoryTest, IsEnoughAndNotTooMuch) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    Problem problem = random_problem(seed);
    problem.offload = false;
    for (Rank& rank : problem.ranks) rank.memory_bytes = 1;
    const LeastMemory need = least_memory(problem);
    const auto with = [&](double bytes) {
      Problem other = problem;
      for (Rank& rank : other.ranks) rank.memory_bytes = bytes;
      return choose(other).has_value();
    };
    EXPECT_TRUE(with(need.bytes));
    EXPECT_TRUE(with(need.factor));
    EXPECT_FALSE(with(std::nextafter(need.bytes, 0)));
  }
}

TEST(LeastMemoryTest, IsThatOfAnEvenCutIfAllCutsAreTooManyToLookAt) {
  // The even cut gives four of the five layers to one rank.
  Problem problem = simple_problem({9, 1, 1, 1, 1}, 2, 1, {"1f1b"});
  for (Rank& rank : problem.ranks) rank.memory_bytes = 1;
  Effort none;
  none.all_cuts = 0;
  const LeastMemory even = least_memory(problem, none);
  EXPECT_GT(even.bytes, least_memory(problem).bytes);
  EXPECT_EQ(even.factor, even.bytes);
  for (Rank& rank : problem.ranks) rank.memory_bytes = even.bytes;
  EXPECT_TRUE(choose(problem));
}

TEST(LeastMemoryTest, ItsFactorIsEnoughInDoubleArithmetic) {
  for (int saved = 1; saved < 40; ++saved) {
    for (int limit = 1; limit < saved; limit += 3) {
      Problem problem = simple_problem({1, 1}, 1, 1, {"looped-bfs"});
      problem.stages_per_rank = {2};
      for (SavedBytes& each : problem.workloads[0].saved) each.bytes = saved;
      problem.ranks[0].memory_bytes = limit;
      ASSERT_FALSE(choose(problem));
      problem.ranks[0].memory_bytes *= least_memory(problem).factor;
      EXPECT_TRUE(choose(problem)) << saved << " bytes, limit " << limit;
    }
  }
}

TEST(ProblemTest, IsCheckedWithTheNumberAndItsPlace) {
  EXPECT_NO_THROW(check(simple_problem({1, 1}, 2, 1, {"1f1b"})));
  const auto error = [](const auto& change) {
    Problem problem = simple_problem({1, 1}, 2, 1, {"1f1b"});
    problem.workloads.push_back(problem.workloads[0]);
    change(problem.workloads[1]);
    return error_of([&] { check(problem); });
  };
  EXPECT_EQ(error([](Workload& each) { each.layers.pop_back(); }),
            "one workload has 2 layers, another one 1");
  EXPECT_EQ(error([](Workload& each) { each.microbatches = 0; }),
            "there are 0 micro-batches: there must be at least 1");
  EXPECT_EQ(error([](Workload& each) { each.layers[1].forward = -1; }),
            "the forward of layer 1 is -1: it must be finite and not negative");
  EXPECT_EQ(error([](Workload& each) {
              each.skips = {{1, 1, 4}};
            }),
            "a skip of 4 bytes goes from layer 1 to layer 1 of 2: it must go "
            "to a later layer, with a finite number of bytes >= 0");
  EXPECT_EQ(error([](Workload& each) {
              each.saved = {{4, {1, 0}}};
            }),
            "a saved tensor of 4 bytes has 2 layers: these must be ascending "
            "numbers of 2 layers, and the bytes finite and not negative");
}

std::vector<std::string> names_of(const std::vector<Candidate>& candidates) {
  std::vector<std::string> names;
  for (const Candidate& each : candidates) {
    names.push_back(each.schedule + " " + std::to_string(each.stages_per_rank) +
                    " " + to_string(each.recompute) +
                    (each.offload ? " offload" : ""));
  }
  return names;
}

TEST(CandidatesTest, AreOrderedTheSimplestFirst) {
  Problem problem =
      simple_problem({1, 1, 1, 1}, 2, 2, {"zbv", "looped-bfs", "fill-drain"});
  problem.recomputes = {Checkpoint::kNever, Checkpoint::kAlways, kWhereNeeded};
  problem.offload = true;
  // Four stages per rank are too many for four layers. looped-bfs with one is
  // fill-drain. kWhereNeeded needs a memory limit.
  EXPECT_THAT(
      names_of(candidates(problem)),
      ElementsAre("fill-drain 1 never", "fill-drain 1 always",
                  "looped-bfs 2 never", "looped-bfs 2 always", "zbv 2 never",
                  "zbv 2 always", "fill-drain 1 never offload",
                  "looped-bfs 2 never offload", "zbv 2 never offload"));
  problem.schedules = {"looped-bfs"};
  problem.offload = false;
  problem.ranks[0].memory_bytes = 1e9;
  problem.stages_per_rank = {2, 1, 2};
  EXPECT_THAT(names_of(candidates(problem)),
              ElementsAre("looped-bfs 1 never", "looped-bfs 1 always",
                          "looped-bfs 1 where_needed", "looped-bfs 2 never",
                          "looped-bfs 2 always", "looped-bfs 2 where_needed"));
}

// candidates() leaves these out.
TEST(CandidatesTest, SchedulesForSeveralStagesHaveTwinsWithOne) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int microbatches = 1; microbatches <= 12; ++microbatches) {
      const auto ranks_of = [&](const char* name) {
        return named_schedule(name, ranks, microbatches, 1).ranks;
      };
      EXPECT_EQ(ranks_of("interleaved-1f1b"), ranks_of("eager-1f1b"));
      EXPECT_EQ(ranks_of("looped-bfs"), ranks_of("fill-drain"));
      EXPECT_EQ(ranks_of("zb-interleaved"), ranks_of("zb-h1"));
    }
  }
}

}  // namespace
}  // namespace gpipe::balancing::planner
