#include "training/program/cut.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <string>
#include <vector>

#include "balancing/profile/testing.h"
#include "gpipe/schedule.h"
#include "models/testing/files.h"
#include "training/program/run.h"
#include "training/program/step.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// ---- The option --offload

std::string with(const std::string& offload,
                 const std::vector<int64_t>& automatic = {}) {
  return to_csv(with_offload_option(one_forward_one_backward(2, 4), offload,
                                    [&] { return automatic; }));
}

TEST(OffloadOptionTest, NoneAndAutoWithoutRanksLeaveTheScheduleAsItIs) {
  const std::string plain = to_csv(one_forward_one_backward(2, 4));
  EXPECT_EQ(with("none", {0, 1}), plain);
  EXPECT_EQ(with("auto", {}), plain);
}

TEST(OffloadOptionTest, ANumberOffloadsTheCellsThatAreAsDistant) {
  const Schedule plain = one_forward_one_backward(2, 4);
  for (const int distance : {0, 1, 2, 3}) {
    EXPECT_EQ(with(std::to_string(distance)),
              to_csv(with_offload(plain, distant_cells(plain, distance))));
  }
  // Rank 0 of 1F1B has two other actions between a forward and its backward,
  // once it is in its steady state.
  EXPECT_NE(with("1").find("0O1"), std::string::npos) << with("1");
  EXPECT_EQ(with("99"), to_csv(plain));
}

TEST(OffloadOptionTest, AutoIsTwoOnTheRanksThatNeedIt) {
  EXPECT_EQ(with("auto", {0, 1}), with("2"));
  const Schedule plain = one_forward_one_backward(3, 6);
  const auto distant = distant_cells(plain, 2);
  const Schedule some = with_offload_option(
      plain, "auto", [] { return std::vector<int64_t>{1}; });
  EXPECT_EQ(to_csv(some), to_csv(with_offload(plain, [&](int stage, int i) {
              return stage == 1 && distant(stage, i);
            })));
}

TEST(OffloadOptionTest, AnythingElseIsRefused) {
  for (const char* wrong : {"", "-1", "2x", "all", "99999999999"}) {
    EXPECT_EQ(testing::value_error_of([&] { with(wrong); }),
              "--offload=" + std::string(wrong) +
                  ": must be none, auto, or a number of actions >= 0");
  }
}

TEST(OffloadOptionTest, AllRanksNeedAccelerators) {
  const RankDevice cpu, unknown{true, 0}, known{true, 100};
  EXPECT_THAT(ranks_to_offload({known, cpu}, {1000, 1000}), IsEmpty());
  EXPECT_THAT(ranks_to_offload({known, known, known}, {80, 81, 10}),
              ElementsAre(1));
  EXPECT_THAT(ranks_to_offload({known, unknown}, {1, 1}), ElementsAre(0, 1));
  EXPECT_THAT(ranks_to_offload({known, known}, {}), ElementsAre(0, 1));
}

TEST(OffloadOptionTest, ADeviceIsTheSameAfterItsText) {
  const RankDevice device{true, 85899345920.25};
  const RankDevice again = rank_device_of(to_text(device));
  EXPECT_TRUE(again.is_accelerator);
  EXPECT_EQ(again.memory_bytes, device.memory_bytes);
  EXPECT_FALSE(rank_device(torch::kCPU).is_accelerator);
  EXPECT_THROW(rank_device_of("1"), c10::ValueError);
}

// Returns the profile of 1 row: each layer has 10 * 10 + 10 parameters of 4
// bytes. Layer 0 keeps the input, and layer 1 that of layer 1.
balancing::MemoryProfile two_layers() {
  torch::nn::Sequential model(torch::nn::Linear(10, 10),
                              torch::nn::Linear(10, 10));
  return balancing::profile_memory(model, torch::ones({1, 10}));
}

TEST(OffloadOptionTest, ThePredictionCountsParametersAndMicrobatchesInFlight) {
  const auto profile = two_layers();
  constexpr double kParameters = 4 * (10 * 10 + 10) * 4;
  const Schedule schedule = one_forward_one_backward(2, 4);
  const auto predicted =
      predicted_bytes(schedule, Checkpoint::kNever, {1, 1}, profile,
                      /*param_scale=*/4);
  const auto saved = [&](int64_t stage) {
    return static_cast<double>(
        balancing::saved_bytes(profile, stage, stage + 1));
  };
  EXPECT_THAT(predicted,
              ElementsAre(kParameters + 2 * saved(0), kParameters + saved(1)));
}

// A model that needs more than its devices have, and one that does not.
TEST(OffloadOptionTest, ACutOffloadsIfTheModelWouldNotFit) {
  torch::nn::Sequential model;
  for (int k = 0; k < 2; ++k) model->push_back(torch::nn::Linear(10, 10));
  for (int k = 0; k < 20; ++k) model->push_back(torch::nn::Tanh());
  Options options;
  options.offload = "auto";
  options.balance = "12,10";
  options.checkpoint = "never";
  options.chunks = 8;
  int questions = 0;
  const Precision precision;
  const auto schedule = [&](const std::vector<RankDevice>& devices) {
    return make_cut(options, {model,
                              2,
                              64,
                              [](int64_t rows) {
                                return Sample{torch::ones({rows, 10}), {}};
                              },
                              {},
                              precision,
                              devices,
                              {},
                              [&](const auto& find) {
                                ++questions;
                                return find();
                              }})
        .schedule;
  };
  const Schedule plain = one_forward_one_backward(2, 8);
  EXPECT_EQ(to_csv(schedule({{true, 1e9}, {true, 1e9}})), to_csv(plain));
  EXPECT_EQ(questions, 2);  // rank 0 decides the balance and the ranks
  EXPECT_EQ(to_csv(schedule({{true, 3000}, {true, 1e9}})),
            to_csv(with_offload(plain, distant_cells(plain, 2))));
  EXPECT_EQ(to_csv(schedule({{true, 3000}, {false, 0}})), to_csv(plain));
}

TEST(ParamScaleTest, CountsTheStateOfTheOptimizer) {
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

// ---- The cut that flags ask for

TEST(CutTest, TooManyStagesNameTheFlagThatCounts) {
  const torch::nn::Sequential model(torch::nn::Linear(1, 1));
  const Precision precision;
  Options options;
  const auto error = [&] {
    return gpipe::testing::value_error_of([&] {
      make_cut(options,
               {model, 2, 8, {}, {}, precision, {}, {}, [](const auto& find) {
                  return find();
                }});
    });
  };
  EXPECT_EQ(error(),
            "2 stages are more than the model's 1 layers; use fewer "
            "--partitions or --stages_per_rank");
  options.distributed = true;  // ignores --partitions
  EXPECT_EQ(error(),
            "2 stages are more than the model's 1 layers; use fewer processes "
            "or --stages_per_rank");
}

TEST(CutTest, RefusesMoreRowsPerStepThanCanBeCounted) {
  Options options;
  options.accumulate = 1 << 30;
  const torch::nn::Sequential model;
  const Precision precision;
  EXPECT_THAT(
      [&] {
        make_cut(options,
                 {model, 2, int64_t{1} << 33, {}, {}, precision, {}, {}, {}});
      },
      ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr(
          "--accumulate=1073741824 mini-batches of 8589934592 rows are more "
          "rows than can be counted")));
}

// ---- The cut that --plan asks for

TEST(PlannedCutTest, ARunPlansAndComparesThePredictionWithItsSteps) {
  Options options = planned_options("transformer", "auto");
  options.steps = 3;
  const Ran ran = run_here(options);
  EXPECT_EQ(ran.code, kDone);
  EXPECT_NE(ran.line_with("a step is predicted to take"), "");
  EXPECT_NE(ran.line_with("(median of 2)"), "");
  EXPECT_NE(ran.line_with("partitions 0,1 on cpu: at most "), "");
  options.accumulate = 2;
  EXPECT_THROW(run_here(options), c10::ValueError);
}

TEST(PlannedCutTest, ARunTakesAPlanFromAFile) {
  Options options =
      planned_options("transformer", ::testing::TempDir() + "plan.json");
  options.steps = 2;
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
