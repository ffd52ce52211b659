#include "gpipe/runtime/step/stage_workers.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/failure.h"
#include "gpipe/runtime/run/caught.h"
#include "gpipe/runtime/step/small_stages_testing.h"
#include "gpipe/schedule/generators/forward_only.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
using testing::Scale;

StageWorkers two_workers() {
  return StageWorkers(testing::stages_of({torch::nn::AnyModule(Scale(3)),
                                          torch::nn::AnyModule(Scale(5))})
                          .partitions,
                      {1}, {0, 1}, testing::devices(2), /*threads=*/1,
                      /*one_at_a_time=*/false);
}

// Counts the actions of one worker, and throws at the action `at`.
struct Counter : Actor {
  int done = 0, at = -1;
  bool ready(const Action&) override { return true; }
  void perform(const Action&) override {
    if (done++ == at) throw std::runtime_error("no");
  }
  Failure place(const Action& action) override {
    return at_partition(action.stage, Phase::kForward);
  }
};

TEST(StageWorkers, KeepTheFailureOfTheLastPass) {
  StageWorkers workers = two_workers();
  EXPECT_EQ(workers.stages().unsplit, Unsplit{1});
  Schedule schedule = forward_only(2, 4);
  schedule.ranks[1].clear();
  const Plan plan(schedule);
  Counter counter;
  const auto running = workers.enter();
  EXPECT_TRUE(running.owns_lock());
  counter.at = 2;
  EXPECT_THROW(workers.run(plan, counter), std::runtime_error);
  EXPECT_EQ(counter.done, 3);
  ASSERT_TRUE(workers.last_failure());
  EXPECT_EQ(workers.last_failure()->to_string(),
            "partition 0, all micro-batches, forward: no");
  counter.at = -1;
  workers.run(plan, counter);
  EXPECT_EQ(counter.done, 7);
  EXPECT_FALSE(workers.last_failure());
}

TEST(StageWorkers, GiveAPlaceToWorkOutsideOfTheSchedule) {
  StageWorkers workers = two_workers();
  EXPECT_EQ(workers.outside_schedule(at_partition(1, Phase::kGather),
                                     [] { return 7; }),
            7);
  EXPECT_FALSE(workers.last_failure());
  EXPECT_EQ(error_of([&] {
              workers.outside_schedule(at_partition(1, Phase::kGather), [] {
                throw std::runtime_error("full");
              });
            }),
            "std::runtime_error: full");
  EXPECT_EQ(workers.last_failure()->partition, 1);
  EXPECT_EQ(workers.last_failure()->phase, Phase::kGather);
}

}  // namespace
}  // namespace gpipe::internal
