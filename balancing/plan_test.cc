#include "balancing/plan.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "balancing/profile/testing.h"
#include "balancing/stage_costs.h"
#include "gpipe/gpipe.h"
#include "gpipe/simulation.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/thrown.h"

namespace gpipe::balancing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

constexpr double kMany = 1e18;

std::vector<PlanDevice> devices(int64_t count, double bytes = kMany) {
  return std::vector<PlanDevice>(count, PlanDevice().memory_bytes(bytes));
}

// Returns options for forward() and backward().
PlanOptions fill_drain_options() {
  return PlanOptions()
      .schedules({"fill-drain"})
      .stages_per_rank({1})
      .workers(8);
}

PlanOptions quiet() {
  return fill_drain_options().checkpoints({Checkpoint::kNever});
}

TEST(PlanTest, GpusKeepMemoryForTheWorkspacesOfCublas) {
  constexpr double kMib = 1024.0 * 1024;
  EXPECT_EQ(usable_memory(torch::kCUDA, 1000 * kMib), 936 * kMib);
  EXPECT_EQ(usable_memory(torch::kCUDA, 10 * kMib), 0);
  EXPECT_EQ(usable_memory(torch::kCUDA, -kMib), -kMib);
  EXPECT_EQ(usable_memory(torch::kCPU, 10 * kMib), 10 * kMib);
}

// The example at plan() in plan.h, word for word.
TEST(PlanTest, TheExampleOfTheHeaderRuns) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Tanh(),
                              torch::nn::Linear(4, 1));
  const torch::Tensor input = torch::ones({8, 4});
  ::testing::internal::CaptureStdout();
  // clang-format off
  auto plan =
      gpipe::balancing::plan(model, input, {torch::kCPU, torch::kCPU});
  std::cout << plan;
  gpipe::GPipe pipeline(model, plan.options());
  // clang-format on
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              HasSubstr("micro-batch"));
  EXPECT_EQ(pipeline->devices(), std::vector<torch::Device>(2, torch::kCPU));
  EXPECT_EQ(pipeline->forward(input).size(0), 8);
}

// Each of four micro-batches would have one row.
TEST(PlanTest, LeavesOutMicrobatchesOfTooFewRowsForALayer) {
  const torch::nn::Sequential model(torch::nn::Linear(4, 4),
                                    torch::nn::BatchNorm1d(4),
                                    torch::nn::Linear(4, 1));
  const torch::Tensor input = torch::ones({4, 4});
  const std::vector<PlanDevice> two = {torch::kCPU, torch::kCPU};
  EXPECT_LE(plan(model, input, two).chunks, 2);
  EXPECT_THAT(
      [&] {
        plan(model, input, two, PlanOptions().chunks({1, 4}));
      },
      ThrowsMessage<c10::Error>(
          HasSubstr("Expected more than 1 value per channel")));
}

TEST(PlanTest, PredictsTheClosedFormOfGPipe) {
  const Plan result = plan(even_profile({1, 1, 1, 1}), /*rows=*/8, devices(2),
                           quiet().chunks({4}));
  EXPECT_THAT(result.balance, ElementsAre(2, 2));
  EXPECT_EQ(result.chunks, 4);
  // 2 rows each: f = 4, b = 8 per partition.
  EXPECT_EQ(result.step_seconds, (4 + 1) * 12);
  ASSERT_EQ(result.partitions.size(), 2);
  EXPECT_EQ(result.partitions[0].forward, 4);
  EXPECT_EQ(result.partitions[0].backward, 8);
  EXPECT_DOUBLE_EQ(result.partitions[0].idle, 0.2);
  EXPECT_DOUBLE_EQ(result.partitions[0].bubble_share, 0.5);
}

TEST(PlanTest, OneForwardOneBackwardTakesAsLongAndHoldsLess) {
  const auto profile = even_profile({1, 1, 1, 1});
  const auto options = quiet().chunks({8});
  const Plan gpipe = plan(profile, 8, devices(4), options);
  const Plan in_turns =
      plan(profile, 8, devices(4), PlanOptions(options).schedules({"1f1b"}));
  EXPECT_EQ(in_turns.step_seconds, gpipe.step_seconds);
  // 8 bytes for the parameter and its gradient, and 10 bytes saved for each
  // micro-batch in flight.
  for (int64_t j = 0; j < 4; ++j) {
    EXPECT_EQ(gpipe.partitions[j].memory_bytes, 8 + 8 * 10) << j;
    EXPECT_EQ(in_turns.partitions[j].memory_bytes, 8 + (4 - j) * 10) << j;
  }
}

TEST(PlanTest, CopiesAreBesideTheWork) {
  // 6 bytes a row, at 2 bytes per second: the copy is a third stage of 3 s.
  const Plan result = plan(even_profile({1, 1}), 4, devices(2),
                           quiet().chunks({4}).bandwidth(2));
  EXPECT_EQ(result.step_seconds, (1 + 3 + 1) + (2 + 3 + 2) + 3 * (3 + 3));
}

TEST(PlanTest, SaysWhoseTheBubbleIs) {
  // f + b is 6 on one side and 3 on the other, for 2 rows each.
  const Plan result =
      plan(even_profile({1, 0.5}), /*rows=*/4, devices(2), quiet().chunks({2}));
  const double bubble = 2 * result.step_seconds - 2 * 6 - 2 * 3;
  EXPECT_DOUBLE_EQ(result.partitions[0].bubble_share,
                   (result.step_seconds - 2 * 6) / bubble);
  EXPECT_DOUBLE_EQ(result.partitions[1].bubble_share,
                   (result.step_seconds - 2 * 3) / bubble);
  EXPECT_EQ(plan(even_profile({1}), 4, devices(1), quiet().chunks({2}))
                .partitions[0]
                .bubble_share,
            0);
}

TEST(PlanTest, PrefersMoreMicroBatchesWhileTheyPay) {
  const auto profile = even_profile({1, 1, 1, 1});
  EXPECT_EQ(plan(profile, 8, devices(2), quiet()).chunks, 8);
  EXPECT_EQ(plan(profile, 8, devices(1), quiet()).chunks, 1);
  // An action takes 10 s more, however small its micro-batch is.
  EXPECT_LT(plan(profile, 64, devices(2), quiet().overhead(10)).chunks, 16);
}

TEST(PlanTest, TriesChunksThatThereCanBe) {
  const Plan result =
      plan(even_profile({1, 1}), 5, devices(2), quiet().chunks({4, 5, 100}));
  // 4 chunks of 5 rows are 2, 2 and 1.
  ASSERT_THAT(result.candidates, SizeIs(2));
  EXPECT_EQ(result.candidates[0].chunks, 3);
  EXPECT_EQ(result.candidates[1].chunks, 5);
}

TEST(PlanTest, CountsMemoryByModeAndTakesTheFastestThatFits) {
  const auto profile = even_profile({1, 1, 1, 1});
  const auto all = fill_drain_options().chunks({8});
  // Parameters: 2 x 8 bytes each. kNever: 8 graphs of 20 bytes.
  const Plan never = plan(profile, 8, devices(2), all);
  EXPECT_EQ(never.checkpoint, Checkpoint::kNever);
  EXPECT_EQ(never.partitions[0].memory_bytes, 16 + 8 * 20);
  EXPECT_EQ(never.partitions[1].memory_bytes, 16 + 8 * 20);
  // One graph, and 7 inputs of 6 bytes on the second partition.
  const Plan except_last = plan(profile, 8, devices(2, 100), all);
  EXPECT_EQ(except_last.checkpoint, Checkpoint::kExceptLast);
  EXPECT_EQ(except_last.partitions[1].memory_bytes, 16 + 20 + 7 * 6);
  EXPECT_GT(except_last.step_seconds, never.step_seconds);
  EXPECT_TRUE(std::isinf(except_last.candidates[0].step_seconds));
  EXPECT_NE(except_last.candidates[0].remark, "");
}

TEST(PlanTest, KnowsSpeedsAndWorkers) {
  const auto profile = even_profile({1, 1, 1, 1});
  auto unequal = devices(2);
  unequal[1].speed(3);
  EXPECT_THAT(plan(profile, 8, unequal, quiet().chunks({8})).balance,
              ElementsAre(1, 3));
  // Two partitions that share one core run one after the other.
  const Plan shared =
      plan(profile, 8, devices(2), quiet().chunks({8}).workers(1));
  EXPECT_EQ(shared.step_seconds, 8 * 12);
}

TEST(PlanTest, MakesAPipelineOfAModel) {
  using torch::nn::Linear, torch::nn::ReLU;
  torch::nn::Sequential model(Linear(4, 16), ReLU(), Linear(16, 2));
  const auto input = torch::ones({6, 4});
  const Plan result = plan(
      model, input, {torch::Device(torch::kCPU), torch::Device(torch::kCPU)},
      PlanOptions()
          .schedules({"fill-drain"})
          .stages_per_rank({1})
          .chunks({1, 3})
          .profile(TimeOptions().timeout(0)));
  EXPECT_THAT(result.candidates, SizeIs(6));
  GPipe pipeline(model, result.options());
  EXPECT_EQ(pipeline->chunks(), result.chunks);
  EXPECT_EQ(pipeline->balance(), result.balance);
  EXPECT_EQ(pipeline->forward(input).size(0), 6);
}

TEST(PlanTest, AMicroBatchHasUnsplitElementsWhole) {
  using Pair = std::tuple<torch::Tensor, torch::Tensor>;
  torch::nn::Sequential model(
      testing::layer<torch::Tensor, Pair>([](Pair shared_and_x) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return std::get<1>(shared_and_x) + std::get<0>(shared_and_x).sum();
      }),
      torch::nn::Linear(4, 2));
  const auto input = std::make_tuple(torch::ones({60}), torch::ones({6, 4}));
  const Plan result = plan(
      model, input, {torch::Device(torch::kCPU), torch::Device(torch::kCPU)},
      quiet().chunks({3}).unsplit({0}).profile(TimeOptions().timeout(0)));
  EXPECT_GE(result.step_seconds, 0.03);  // and not that of 2 of 60 rows
  GPipe pipeline(model, result.options().unsplit({0}));
  EXPECT_EQ(pipeline->forward(input).size(0), 6);
}

TEST(PlanTest, ExplainsItself) {
  std::ostringstream text;
  text << plan(even_profile({1, 1, 1, 1}), 8, devices(2, 100),
               fill_drain_options().chunks({8}));
  EXPECT_EQ(
      text.str(),
      "fill-drain, 1 stage per rank, 8 micro-batches, checkpoint except_last: "
      "a step is predicted to take 68 s\n"
      "  partition  device  layers  forward  backward  memory     of  idle  "
      "of the bubble  bound by\n"
      "          0     cpu       2      2 s       4 s    36 B  100 B   9 %   "
      "        50 %      time\n"
      "          1     cpu       2      2 s       4 s    78 B  100 B   9 %   "
      "        50 %      time\n"
      "bound by memory: partition 1 uses 78 % of its memory, and more memory "
      "would save time\n"
      "the best of each schedule:\n"
      "    schedule  stages per rank  micro-batches   checkpoint  offload  step"
      "  longer by\n"
      "  fill-drain                1              8  except_last       no  68 s"
      "     +0.0 %\n"
      "with one more device: 68 s (+0.0 %)\n"
      "with twice the memory: 54 s (-20.6 %)\n");
}

TEST(PlanTest, SimulatePredictsTheSameStep) {
  const auto profile = even_profile({1, 3, 2, 1, 2});
  for (const char* schedule : {"fill-drain", "1f1b", "zbv"}) {
    for (const Checkpoint checkpoint :
         {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
      // 14 rows in 5 chunks are 3, 3, 3, 3 and 2.
      const Plan result = plan(profile, /*rows=*/14, devices(2),
                               PlanOptions()
                                   .schedules({schedule})
                                   .chunks({5})
                                   .checkpoints({checkpoint})
                                   .workers(2)
                                   .latency(0.5)
                                   .bandwidth(16));
      Costs costs = stage_costs(profile, 14, 5, result.balance);
      costs.latency = 0.5;
      costs.bandwidth = 16;
      const Timeline timeline = simulate(result.schedule(), costs);
      EXPECT_DOUBLE_EQ(timeline.makespan, result.step_seconds);
      for (std::size_t r = 0; r < 2; ++r) {
        EXPECT_EQ(timeline.peak_bytes[r], result.partitions[r].memory_bytes);
      }
    }
  }
}

TEST(StageCostsTest, AreThoseOfMicrobatchesAndStages) {
  Profile profile = even_profile({1, 3, 2});
  profile.memory.skips.push_back({0, 2, 5});
  // 7 rows in 4 chunks are 2, 2, 2 and 1.
  const Costs costs = stage_costs(profile, 7, 4, {1, 1, 1}, /*speed=*/2);
  EXPECT_THAT(costs.forward, ElementsAre(0.875, 3 * 0.875, 2 * 0.875));
  EXPECT_THAT(costs.boundary_bytes, ElementsAre(2 * 6, 2 * (6 + 5)));
  EXPECT_THAT(costs.resident_bytes, ElementsAre(8, 8, 8));
  EXPECT_THAT(costs.activation_bytes, ElementsAre(20, 20, 20));
  EXPECT_EQ(costs.latency, 0);
  EXPECT_THROW(stage_costs(profile, 5, 4, {1, 1}), std::invalid_argument);
  EXPECT_THROW(stage_costs(profile, 0, 4, {3}), std::invalid_argument);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(stage_costs(profile, 5, 4, {3}, infinity),
               std::invalid_argument);
  for (const double scale : {-1.0, std::nan(""), infinity}) {
    EXPECT_THROW(stage_costs(profile, 5, 4, {3}, 1, scale),
                 std::invalid_argument);
  }
  EXPECT_THROW(stage_costs(profile, 5, 4, {3}, 0), std::invalid_argument);
}

TEST(PlanTest, AProfileWithoutTheMemoryOfALayerIsRefused) {
  Profile profile = even_profile({1, 1, 1});
  profile.memory.layers.pop_back();
  const auto error = ThrowsMessage<std::invalid_argument>(
      "the profile has the times of 3 layers, but the memory of 2: give both "
      "for each layer");
  EXPECT_THAT([&] { plan(profile, 8, devices(2), quiet()); }, error);
  EXPECT_THAT([&] { stage_costs(profile, 8, 1, {3}); }, error);
}

TEST(PlanTest, NumbersOutOfTheirRangeAreNamedAsInTheProfile) {
  const auto error = [](const auto& change) {
    Profile profile = even_profile({1, 1, 1});
    change(profile);
    const auto error_of = [](const auto& run) {
      return testing::thrown<std::invalid_argument>(run);
    };
    const std::string text =
        error_of([&] { plan(profile, 800, devices(2), quiet()); });
    EXPECT_EQ(error_of([&] { stage_costs(profile, 800, 2, {3}); }), text);
    return text;
  };
  EXPECT_EQ(error([](Profile& each) { each.times[1].forward = -1; }),
            "the forward of layer 1 is -1: it must be finite and not negative");
  EXPECT_EQ(
      error([](Profile& each) { each.times[2].accumulate = -3; }),
      "the accumulate of layer 2 is -3: it must be finite and not negative");
  EXPECT_EQ(error([](Profile& each) {
              each.memory.layers[2].parameter_bytes = 1;
              each.memory.layers[2].trained_bytes = 4;
            }),
            "the trained_bytes of layer 2 are 4: they must be at most its "
            "parameter_bytes, 1");
  EXPECT_EQ(error([](Profile& each) {
              each.memory.layers[0].parameter_bytes = 9;
              each.memory.layers[0].buffer_bytes = -2;
            }),
            "the buffer_bytes of layer 0 are -2: they must not be negative");
  EXPECT_EQ(
      error([](Profile& each) { each.memory.layers[1].output_bytes = -5; }),
      "the output_bytes of layer 1 is -5: it must be finite and not negative");
  EXPECT_EQ(error([](Profile& each) {
              each.memory.skips = {{2, 1, 4}};
            }),
            "a skip of 4 bytes goes from layer 2 to layer 1 of 3: it must go "
            "to a later layer, with a finite number of bytes >= 0");
}

TEST(StageCostsTest, NeedAStage) {
  EXPECT_THAT([] { stage_costs(even_profile({}), 8, 1, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr(
                  "the balance is empty: give the layers of each of at least 1 "
                  "stage")));
}

TEST(PlanTest, NamesWhatCannotBe) {
  const auto profile = even_profile({1, 1});
  const auto refuse = [&](const PlanOptions& options) {
    EXPECT_THROW(plan(profile, 8, devices(2), options), c10::ValueError);
  };
  refuse(PlanOptions().chunks({0}));
  refuse(PlanOptions().checkpoints({}));
  refuse(PlanOptions().param_scale(-1));
  refuse(PlanOptions().latency(std::nan("")));
  refuse(PlanOptions().bandwidth(0));
  refuse(PlanOptions().workers(-1));
  EXPECT_THROW(plan(profile, 8, {}), c10::ValueError);
  EXPECT_THROW(plan(profile, 8, devices(3)), c10::ValueError);
  EXPECT_THROW(plan(profile, 0, devices(2)), c10::ValueError);
  EXPECT_THROW(plan(Profile(), 8, devices(1)), c10::ValueError);
  EXPECT_THROW(plan(profile, 8, {PlanDevice().speed(0)}), c10::ValueError);
  EXPECT_THROW(plan(profile, 8, {PlanDevice().memory_bytes(-1)}),
               c10::ValueError);
}

}  // namespace
}  // namespace gpipe::balancing
