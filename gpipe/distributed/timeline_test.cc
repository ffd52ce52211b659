// The timeline of one rank.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <set>
#include <stdexcept>
#include <string>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world/world.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::expect_all_ok;
using testing::RankProgramEntry;
using testing::Ranks;
using testing::world_options;
using torch::Tensor;

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// Returns a text such as "0F0 0>1 128".
std::string name_of(const Transfer& transfer) {
  return to_string(transfer.action) + " " + std::to_string(transfer.from) +
         ">" + std::to_string(transfer.to) + " " +
         std::to_string(static_cast<int64_t>(transfer.bytes));
}

const RankProgramEntry kTimeline("timeline", [] {
  const auto world = World::connect(world_options());
  DistributedPipeline pipeline(testing::linear_model(),
                               DistributedOptions({2, 2, 2}), world);
  const StepResult result = pipeline->train_step(
      torch::randn({4, 6}, torch::kDouble),
      torch::zeros({4, 3}, torch::kDouble),
      [](const Tensor& output, const Tensor& target) {
        return (output - target).pow(2).mean();
      },
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
  return 0;
});

TEST(DistributedTimeline, HasTheMessagesOfTheRank) {
  expect_all_ok(Ranks("timeline", 3).wait());
}

}  // namespace
}  // namespace gpipe
