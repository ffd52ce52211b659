// The timelines of one rank, and of all ranks.
#include "gpipe/distributed/timeline.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::argument;
using testing::check;
using testing::expect_ok;
using testing::RankProgramEntry;
using testing::world_options;
using torch::Tensor;

// Returns a text such as "0F0 0>1 128".
std::string name_of(const Transfer& transfer) {
  return to_string(transfer.action) + " " + std::to_string(transfer.from) +
         ">" + std::to_string(transfer.to) + " " +
         std::to_string(static_cast<int64_t>(transfer.bytes));
}

TEST(DistributedTimeline, RefusesNoWorld) {
  EXPECT_EQ(testing::error_of([] { SharedClock(nullptr); }),
            "c10::ValueError: the world is null; give what World::connect() "
            "returned");
}

const RankProgramEntry kTimeline("timeline", [](auto& world) {
  DistributedPipeline pipeline(testing::linear_model(),
                               DistributedOptions({2, 2, 2}), world);
  const StepResult result = pipeline->train_step(
      torch::randn({4, 6}, torch::kDouble),
      torch::zeros({4, 3}, torch::kDouble), testing::mean_square,
      one_forward_one_backward(3, 2), TrainOptions().timeline(true));
  const Timeline& timeline = *result.timeline;
  check(timeline.first_rank == world->rank(), "first_rank");
  check(timeline.ranks.size() == 1, "ranks");

  // Two rows of eight numbers of eight bytes, in both directions.
  std::set<std::string> names, expected;
  for (const Transfer& each : timeline.transfers) {
    names.insert(name_of(each));
    check(each.start >= 0 && each.sent >= each.start && each.end == each.sent,
          "times of " + name_of(each));
  }
  check(names.size() == timeline.transfers.size(), "a message comes twice");
  for (int i = 0; i < 2; ++i) {
    const std::string f = "F" + std::to_string(i), b = "B" + std::to_string(i);
    if (world->rank() < 2) {
      expected.insert({"0" + f + " 0>1 128", "1" + b + " 1>0 128"});
    }
    if (world->rank() > 0) {
      expected.insert({"1" + f + " 1>2 128", "2" + b + " 2>1 128"});
    }
  }
  check(names == expected, "transfers");

  // An action starts when its inputs are there.
  for (const Transfer& each : timeline.transfers) {
    if (each.to != world->rank()) continue;
    for (const Span& span : timeline.ranks[0]) {
      if (span.action.kind == each.action.kind &&
          span.action.microbatch == each.action.microbatch) {
        check(span.start >= each.end, "start of " + to_string(span.action));
      }
    }
  }
  const IdleParts parts = idle_parts(timeline)[0];
  check(std::abs(parts.total() - timeline.idle[0]) <= 1e-9 * timeline.makespan,
        "idle time");
  check(parts.schedule == 0 && parts.imbalance == 0, "unknown causes");
  const std::string name = "rank " + std::to_string(world->rank());
  check(to_chrome_trace(timeline).find("\"" + name + "\"") != std::string::npos,
        "trace");
  check(timeline.peak_bytes.size() == 1 && timeline.peak_bytes[0] > 0,
        "memory");
});

// All processes of a machine have one steady clock, so the offset is 0.
const RankProgramEntry kClock("clock", [] {
  const auto world = internal::Communicator::connect(world_options());
  const int channel = world->next_channel();
  const internal::ClockOffset first = internal::measure_clock(*world, channel);
  const internal::ClockOffset last = internal::measure_clock(*world, channel);
  for (const auto& each :
       {first, last, internal::offset_at(first, last, first.at)}) {
    check(std::abs(each.seconds) <= each.error + 1e-9, "the offset");
    check(each.error < 30, "the error");
  }
  check(last.at > first.at, "the time");
  return 0;
});

void check_whole(const Timeline& timeline, int ranks, double error) {
  check(timeline.ranks.size() == static_cast<std::size_t>(ranks), "ranks");
  check(timeline.first_rank == 0, "the first rank");
  std::map<std::string, Span> spans;
  for (const auto& list : timeline.ranks) {
    for (const Span& each : list) spans[to_string(each.action)] = each;
  }
  for (const Transfer& each : timeline.transfers) {
    const std::string name = name_of(each);
    check(
        each.from >= 0 && each.from < ranks && each.to >= 0 && each.to < ranks,
        "the ranks of " + name);
    check(each.start <= each.sent && each.sent <= each.end, "order of " + name);
    // By the sender's clock. An output is sent before its action ends.
    check(spans.at(to_string(each.action)).start <= each.start,
          "the start of " + name);
    Action next = each.action;
    next.stage += next.kind == ActionKind::kForward ? 1 : -1;
    check(each.start <= spans.at(to_string(next)).start + error,
          "the start of " + to_string(next));
  }
  check(timeline.transfers.size() == static_cast<std::size_t>(4 * (ranks - 1)),
        "a copy comes twice");
  for (const IdleParts& each : idle_parts(timeline)) {
    check(each.remote == 0, "other processes are in the timeline, too");
  }
}

// Expects that each of `ranks` ranks has added up its gradients, and no other.
void check_sums(const Timeline& timeline, int ranks) {
  check(timeline.gradient_sums.size() == static_cast<std::size_t>(ranks),
        "ranks with sums");
  double bytes = 0;
  for (const auto& sums : timeline.gradient_sums) {
    check(!sums.empty(), "sums");
    for (const GradientSum& each : sums) {
      check(0 <= each.start && each.start <= each.end, "the times of a sum");
      bytes += each.bytes;
    }
  }
  double expected = 0;
  for (const Tensor& each : testing::linear_model()->parameters()) {
    expected += static_cast<double>(each.nbytes());
  }
  check(bytes == (ranks == 0 ? 0 : expected), "the bytes of the sums");
}

const RankProgramEntry kWhole("whole", [](auto& world) {
  const int replicas = argument("replicas") == "2" ? 2 : 1;
  const int ranks = world->size() / replicas;
  DistributedPipeline pipeline(
      testing::linear_model(),
      DistributedOptions(ranks == 3 ? std::vector<int64_t>{2, 2, 2}
                                    : std::vector<int64_t>{3, 3})
          .data_parallel(replicas),
      world);
  SharedClock clock(world);
  for (int step = 0; step < 2; ++step) {
    const StepResult result = pipeline->train_step(
        torch::randn({4, 6}, torch::kDouble),
        torch::zeros({4, 3}, torch::kDouble), testing::mean_square,
        one_forward_one_backward(ranks, 2), TrainOptions().timeline(true));
    const WholeTimeline whole = clock.gather(*result.timeline);
    check(whole.clock_error > 0 && whole.clock_error < 30, "the error");
    check(whole.replicas.size() ==
              static_cast<std::size_t>(world->rank() == 0 ? replicas : 0),
          "replicas");
    for (const auto& [name, timeline] : whole.replicas) {
      check_sums(timeline, replicas == 1 ? 0 : ranks);
      check(name.find(replicas == 1 ? "pipeline" : "replica ") == 0, name);
      check_whole(timeline, ranks, whole.clock_error);
    }
    check(to_chrome_trace(whole.replicas).find("traceEvents") !=
              std::string::npos,
          "trace");
  }
});

TEST(DistributedTimeline, ComparesClocksWithinTheErrorThatItStates) {
  expect_ok("clock", 3);
}

TEST(DistributedTimeline, OfAllRanksIsThatOfOneProcess) {
  expect_ok("whole", 3);
}

TEST(DistributedTimeline, OfAllReplicasHasEachOfThem) {
  expect_ok("whole", 4, {{"replicas", "2"}});
}

TEST(DistributedTimeline, HasTheMessagesOfTheRank) { expect_ok("timeline", 3); }

}  // namespace
}  // namespace gpipe
