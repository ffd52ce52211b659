#include "training/program/planned_cut.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "training/program/exit_code.h"
#include "training/program/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

TEST(PlannedCutTest, CountsTheStateOfTheOptimizer) {
  Options options;
  EXPECT_EQ(param_scale_of(options), 4);
  options.shard_optimizer = true;
  options.data_parallel = 4;
  EXPECT_EQ(param_scale_of(options), 2.5);
  options.shard_optimizer = false;
  options.optimizer = "sgd";
  EXPECT_EQ(param_scale_of(options), 3);
  options.momentum = 0;
  EXPECT_EQ(param_scale_of(options), 2);
}

TEST(PlannedCutTest, ARunPlansAndComparesThePredictionWithItsSteps) {
  Options options = small_options("transformer");
  options.steps = 3;
  options.plan = "auto";
  const Ran ran = run_here(options);
  EXPECT_EQ(ran.code, kDone);
  EXPECT_NE(ran.line_with("a step is predicted to take"), "");
  EXPECT_NE(ran.line_with("(median of 2)"), "");
  EXPECT_NE(ran.line_with("partitions 0,1 on cpu: at most "), "");
  options.accumulate = 2;
  EXPECT_THROW(run_here(options), c10::ValueError);
}

TEST(PlannedCutTest, ARunTakesAPlanFromAFile) {
  Options options = small_options("transformer");
  options.steps = 2;
  options.plan = ::testing::TempDir() + "plan.json";
  const auto write = [&](const std::string& balance) {
    std::ofstream(options.plan)
        << R"({"format": "gpipe plan 1", "step_seconds": 1,
               "schedule": "zbv", "stages_per_rank": 2, "placement": "v",
               "chunks": 2, "checkpoint": "never", "offload": false,
               "balance": )"
        << balance
        << R"(, "ranks": [{"device": "cpu", "stages": [0, 3], "layers": 4},
                          {"device": "cpu", "stages": [1, 2], "layers": 3}]})";
  };
  write("[2, 2, 1, 2]");
  const Ran ran = run_here(options);
  EXPECT_EQ(ran.code, kDone);
  EXPECT_NE(ran.line_with("layers per stage: 2,2,1,2"), "");
  EXPECT_NE(ran.line_with("1 s were predicted"), "");
  write("[2, 2, 1, 1]");
  EXPECT_THROW(run_here(options), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::train_program
