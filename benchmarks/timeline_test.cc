#include "benchmarks/timeline.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "gpipe/simulation.h"
#include "gpipe/testing/layers.h"

namespace gpipe::benchmarks {
namespace {

using gpipe::testing::Add;
using gpipe::testing::Keep;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Costs equal_stages(std::size_t stages) {
  Costs costs;
  costs.forward.assign(stages, 1);
  costs.backward.assign(stages, 2);
  costs.recompute.assign(stages, 1);
  costs.boundary_bytes.assign(stages - 1, 10);
  costs.latency = 0.25;
  costs.bandwidth = 40;
  return costs;
}

std::vector<int> backwards(const std::vector<Action>& actions) {
  std::vector<int> microbatches;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kBackward) {
      microbatches.push_back(action.microbatch);
    }
  }
  return microbatches;
}

TEST(AblatedSchedule, IsGPipesWithAllOn) {
  const auto expected =
      with_recompute(fill_drain(3, 4), [](int i) { return i < 3; });
  EXPECT_EQ(ablated_schedule(3, 4, 3, {}, 0).ranks, expected.ranks);
}

TEST(AblatedSchedule, WithoutOrderHasEveryBackwardOnceInAnOrderPerRank) {
  Mechanisms mechanisms;
  mechanisms.ordered_backward = false;
  const Schedule schedule = ablated_schedule(4, 8, 7, mechanisms, 1);
  EXPECT_NO_THROW(validate(schedule));
  std::set<std::vector<int>> orders;
  for (const auto& actions : schedule.ranks) {
    orders.insert(backwards(actions));
    const auto order = backwards(actions);
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 8u);
  }
  EXPECT_EQ(orders.size(), 4u);
  EXPECT_EQ(ablated_schedule(4, 8, 7, mechanisms, 1).ranks, schedule.ranks);
}

TEST(AblatedSchedule, LateRecomputesWaitForTheGradient) {
  // Late recomputes delay each rank but the last by one recompute.
  const Costs costs = [] {
    Costs c = equal_stages(4);
    c.latency = c.bandwidth = 0;
    return c;
  }();
  Mechanisms late;
  late.early_recompute = false;
  const double early_end =
      simulate(ablated_schedule(4, 8, 8, {}, 0), costs).makespan;
  const double late_end =
      simulate(ablated_schedule(4, 8, 8, late, 0), costs).makespan;
  EXPECT_DOUBLE_EQ(early_end, (8 + 3) * 3 + 8);
  EXPECT_DOUBLE_EQ(late_end, (8 + 3) * 4);
}

TEST(WithCopiesInTurn, GivesTheTimeOfACopyToBothOfItsEnds) {
  const Costs costs = with_copies_in_turn(equal_stages(3));
  // A copy takes 0.25 s + 10 / 40 s. The middle stage has two boundaries.
  EXPECT_EQ(costs.forward, (std::vector<double>{1.5, 2, 1.5}));
  EXPECT_EQ(costs.backward, (std::vector<double>{2.5, 3, 2.5}));
  EXPECT_EQ(costs.recompute, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(costs.latency, 0);
  EXPECT_EQ(costs.bandwidth, 0);
}

TEST(SimulateAblated, HoldsGradientsGraphsAndInputs) {
  balancing::Profile profile;
  profile.rows = 1;
  profile.times.assign(2, {1, 2});
  balancing::LayerMemory layer;
  layer.parameter_bytes = layer.trained_bytes = 100;
  layer.output_bytes = 10;
  profile.memory.layers.assign(2, layer);
  profile.memory.input_bytes = 4;
  profile.memory.saved = {{1000, {0}}, {2000, {1}}};
  Experiment experiment;
  experiment.partitions = 2;
  experiment.balance = {1, 1};
  experiment.batch_size = experiment.chunks = 3;
  experiment.checkpoint = Checkpoint::kNever;
  const auto timeline = simulate_ablated(profile, experiment, {}, 1, {}, 0);
  EXPECT_DOUBLE_EQ(timeline.makespan, (3 + 2 - 1) * 3);
  EXPECT_EQ(timeline.peak_bytes,
            (std::vector<double>{200 + 3 * 1000, 200 + 3 * 2000}));
  // With checkpointing: the inputs of all micro-batches, and one graph. Those
  // of the first stage are views of the mini-batch.
  experiment.checkpoint = Checkpoint::kAlways;
  EXPECT_EQ(simulate_ablated(profile, experiment, {}, 1, {}, 0).peak_bytes,
            (std::vector<double>{200 + 1000, 200 + 3 * 10 + 2000}));
}

int count_of_off(const Mechanisms& on) {
  return !on.direct_skips + !on.copy_streams + !on.early_recompute +
         !on.ordered_backward;
}

// Returns the number of mechanisms that are off in each row.
std::vector<int> counts_of_off(const std::vector<Experiment>& rows) {
  std::vector<int> counts;
  for (const Experiment& row : rows) {
    counts.push_back(count_of_off(mechanisms_of(row)));
  }
  return counts;
}

TEST(TimelineBenchmark, AllOnIsTheBaseAndEachMechanismIsOffByItself) {
  const Benchmark benchmark = timeline_benchmark();
  const auto& rows = benchmark.paper.experiments;
  EXPECT_EQ(rows.front().name, benchmark.base);
  EXPECT_THAT(counts_of_off(rows), ElementsAre(0, 1, 1, 1, 1, 2, 3, 4));
  EXPECT_FALSE(mechanisms_of(rows.at(1)).direct_skips);
  EXPECT_FALSE(mechanisms_of(rows.at(2)).copy_streams);
  EXPECT_FALSE(mechanisms_of(rows.at(3)).early_recompute);
  EXPECT_FALSE(mechanisms_of(rows.at(4)).ordered_backward);
}

TEST(TimelineBenchmark, TorchgpipesRowsAlwaysRecomputeEarly) {
  for (const Experiment& row : timeline_benchmark().paper.experiments) {
    EXPECT_TRUE(!row.published.at(0) || mechanisms_of(row).early_recompute)
        << row.name;
  }
}

// torchgpipe has 30.662 samples/s and 52.2 GiB without dependency, streams and
// portals. That is 52 % of its 58.477 samples/s with all of them.
TEST(TimelineBenchmark, PublishedFiguresAreSpeedRatioAndBytes) {
  const Experiment row = timeline_benchmark().paper.experiments.at(6);
  ASSERT_EQ(row.name, "nor order");
  EXPECT_DOUBLE_EQ(row.published.at(0).value(), 30.662);
  EXPECT_DOUBLE_EQ(row.published.at(1).value(), 30.662 / 58.477);
  EXPECT_DOUBLE_EQ(row.published.at(2).value(), 52.2 * 1073741824);
}

TEST(TimelineBenchmark, TheYardstickIsTheModelOfTheRowsWithoutPipeline) {
  const Experiment plain = timeline_benchmark().yardstick.value();
  EXPECT_EQ(plain.partitions, 0);
  EXPECT_EQ(plain.size, timeline_benchmark().paper.experiments.front().size);
}

TEST(TimelineBenchmark, NoOtherRowHasMechanisms) {
  Experiment row;
  row.name = "checkpoint-only";
  EXPECT_THROW(mechanisms_of(row), std::invalid_argument);
}

// The reduced table, with convolutions of two channels.
class SimulateRows : public ::testing::Test {
 protected:
  SimulateRows() : benchmark_(timeline_benchmark()) {
    options_.mode = Mode::kSimulate;
    options_.small = true;
    options_.simulate.profile_seconds = 0;
    for (const Experiment& row : benchmark_.small.experiments) {
      Outcome& outcome = rows_.emplace_back();
      outcome.experiment = row;
      outcome.experiment.size = {5, 2};
    }
  }

  void simulate() { simulate_rows(benchmark_, options_, &rows_, &notes_); }

  const Outcome& row(const std::string& name) const {
    for (const Outcome& row : rows_) {
      if (row.experiment.name == name) return row;
    }
    throw std::out_of_range(name);
  }
  // Returns the actions of the first rank in a row, in the order of time.
  std::vector<Action> actions(const std::string& name) const {
    std::vector<Action> actions;
    for (const Span& span : row(name).timeline->ranks.at(0)) {
      actions.push_back(span.action);
    }
    return actions;
  }
  double seconds(const std::string& name) const {
    return row(name).durations.at(0).wall_seconds;
  }

  Benchmark benchmark_;
  RunOptions options_;
  std::vector<Outcome> rows_;
  std::vector<std::string> notes_;
};

TEST_F(SimulateRows, EachRowHasATimelineOfItsMiniBatch) {
  simulate();
  for (const Outcome& row : rows_) {
    ASSERT_TRUE(row.timeline) << row.experiment.name;
    EXPECT_EQ(row.timeline->ranks.size(), 4u);
    // 8 forwards, 7 recomputes and 8 backwards.
    EXPECT_EQ(row.timeline->ranks[0].size(), 23u);
    EXPECT_EQ(row.durations.at(0).wall_seconds, row.timeline->makespan);
    EXPECT_EQ(row.samples, 32);
    EXPECT_EQ(row.experiment.balance, benchmark_.small.experiments[0].balance);
  }
}

// Layers take almost no time, and each copy takes one second.
TEST_F(SimulateRows, WithoutStreamsCopiesStopBothOfTheirEnds) {
  options_.simulate.device_speed = 1e12;
  options_.simulate.link = {1, 0};
  simulate();
  // Three links, in forward and in backward.
  EXPECT_NEAR(seconds("all on"), 6, 1e-6);
  // 8 micro-batches in 4 stages of 1, 2, 2 and 1 s, in forward and in backward.
  EXPECT_NEAR(seconds("no copy streams"), 2 * (6 + 7 * 2), 1e-6);
  EXPECT_THAT(notes_, Contains(HasSubstr("1e+12 times as fast")));
  EXPECT_THAT(notes_, Contains(HasSubstr("Links: 1e+06 us and no limit to "
                                         "their bandwidth;")));
}

TEST_F(SimulateRows, RelayedSkipsAreHeldInMorePartitions) {
  simulate();
  const auto& direct = row("all on").timeline->peak_bytes;
  const auto& relayed = row("no direct skips").timeline->peak_bytes;
  ASSERT_EQ(relayed.size(), 4u);
  // Skip tensors bypass the second and the third partition.
  EXPECT_EQ(relayed[0], direct[0]);
  EXPECT_GT(relayed[1], direct[1]);
  EXPECT_GT(relayed[2], direct[2]);
}

TEST_F(SimulateRows, TheSeedDrawsTheOrders) {
  simulate();
  const auto first = actions("no ordered backward");
  const auto ordered = actions("all on");
  simulate();
  EXPECT_EQ(actions("no ordered backward"), first);
  options_.settings.seed = 1;
  simulate();
  EXPECT_NE(actions("no ordered backward"), first);
  EXPECT_EQ(actions("all on"), ordered);
  EXPECT_THAT(notes_, Contains(HasSubstr("the seed 1.")));
}

// Returns a benchmark with a skip that bypasses the second of three partitions.
Benchmark measured_benchmark() {
  Benchmark benchmark;
  benchmark.program.name = "toy_timeline";
  benchmark.model = [](const Experiment&) {
    return torch::nn::Sequential(Keep(), torch::nn::Linear(4, 4), Add());
  };
  benchmark.loss = gpipe::testing::mean_square;
  benchmark.small.input = [](int64_t rows) { return at::ones({rows, 4}); };
  benchmark.small.target = benchmark.small.input;
  return benchmark;
}

Outcome row(const std::string& name) {
  Outcome row;
  row.experiment.name = name;
  row.experiment.partitions = 3;
  row.experiment.batch_size = 6;
  row.experiment.chunks = 3;
  row.experiment.balance = {1, 1, 1};
  return row;
}

RunOptions make_options() {
  RunOptions options;
  options.mode = Mode::kMeasure;
  options.small = true;
  options.settings.devices = {c10::kCPU};
  options.epochs = 3;
  options.skip_epochs = 1;
  return options;
}

TEST(PlanDevices, NamesDevicesAndThreads) {
  std::vector<Outcome> rows{row("all on")};
  plan_devices({c10::kCPU}, &rows);
  EXPECT_EQ(rows[0].devices, "cpu x 3");
  EXPECT_THAT(rows[0].threads, HasSubstr("3 x "));
  EXPECT_EQ(rows[0].error, "");
}

TEST(PlanDevices, LeavesOutRowsWithoutCopyStreamsWhereNothingIsCopied) {
  std::vector<Outcome> rows{row("all on"), row("no copy streams")};
  plan_devices({c10::kCPU}, &rows);
  EXPECT_EQ(rows[0].error, "");
  EXPECT_EQ(rows[1].error,
            "left out: nothing is copied, since all partitions are on cpu");
  // plan_devices() does not use the devices, so they need not exist.
  const c10::Device gpu(c10::kCUDA, 0), other(c10::kCUDA, 1);
  rows = {row("no copy streams"), row("no copy streams")};
  plan_devices({gpu, gpu, gpu}, &rows);
  EXPECT_THAT(rows[0].error, HasSubstr("on cuda:0"));
  rows = {row("no copy streams")};
  plan_devices({gpu, gpu, other}, &rows);
  EXPECT_EQ(rows[0].error, "");
  EXPECT_EQ(rows[0].devices, "cuda:0 x 2, cuda:1");
  EXPECT_EQ(rows[0].threads, "");
}

TEST(PlanDevices, TooFewDevicesAreTold) {
  std::vector<Outcome> rows{row("all on")};
  plan_devices({c10::kCPU, c10::kCPU}, &rows);
  EXPECT_THAT(rows[0].error, HasSubstr("needs 3 devices, there are 2"));
}

TEST(MeasureRows, GivesADurationPerEpochThatIsNotSkipped) {
  std::vector<Outcome> rows{row("all on"), row("no direct skips"),
                            row("no ordered backward")};
  measure_rows(measured_benchmark(), make_options(), /*timelines=*/false,
               &rows);
  for (const Outcome& each : rows) {
    EXPECT_EQ(each.error, "") << each.experiment.name;
    EXPECT_THAT(each.durations, SizeIs(2));
    EXPECT_EQ(each.samples, 6);
    EXPECT_FALSE(each.timeline);
  }
}

TEST(MeasureRows, TimelinesAreOfOneStep) {
  std::vector<Outcome> rows{row("all on"), row("no direct skips")};
  measure_rows(measured_benchmark(), make_options(), /*timelines=*/true, &rows);
  for (const Outcome& each : rows) {
    ASSERT_TRUE(each.timeline) << each.experiment.name;
    // 3 forwards, 2 recomputes and 3 backwards.
    EXPECT_THAT(each.timeline->ranks, AllOf(SizeIs(3), Each(SizeIs(8))));
  }
}

TEST(MeasureRows, ARowWithAnErrorStaysAsItIs) {
  std::vector<Outcome> rows{row("all on"), row("all off")};
  rows[1].error = "left out";
  measure_rows(measured_benchmark(), make_options(), /*timelines=*/false,
               &rows);
  EXPECT_THAT(rows[0].durations, SizeIs(2));
  EXPECT_EQ(rows[1].error, "left out");
  EXPECT_THAT(rows[1].durations, SizeIs(0));
}

TEST(MeasureRows, ARowThatFailsLeavesTheOthers) {
  std::vector<Outcome> rows{row("no direct skips"), row("all on")};
  rows[0].experiment.balance = {1, 1, 2};
  measure_rows(measured_benchmark(), make_options(), /*timelines=*/false,
               &rows);
  EXPECT_THAT(rows[0].error, HasSubstr("the sum of the balance is 4"));
  EXPECT_THAT(rows[0].durations, SizeIs(0));
  EXPECT_THAT(rows[1].durations, SizeIs(2));
  EXPECT_EQ(rows[1].error, "");
}

Benchmark make_benchmark() {
  Benchmark benchmark;
  benchmark.title = "Toy";
  benchmark.base = "all on";
  benchmark.published = {{"their speed", Figure::kSpeed},
                         {"their GiB", Figure::kTotalBytes}};
  return benchmark;
}

// Returns an outcome with 10 samples in each of `seconds`.
Outcome measured(const std::string& name, const std::vector<double>& seconds) {
  Outcome row;
  row.experiment.name = name;
  row.experiment.partitions = 2;
  row.experiment.batch_size = 10;
  row.experiment.chunks = 6;  // torch::chunk makes 5 of 2 rows
  row.experiment.balance = {1, 2};
  row.experiment.size = {3, 4};
  row.mode = Mode::kMeasure;
  row.devices = "cuda:0, cuda:1";
  row.samples = 10;
  for (const double each : seconds) row.durations.push_back({each, 0});
  return row;
}

Outcome simulated(const std::string& name, double seconds) {
  Outcome row = measured(name, {seconds});
  row.mode = Mode::kSimulate;
  row.devices.clear();
  row.timeline.emplace();
  row.timeline->bubble_fraction = 0.25;
  row.timeline->peak_bytes = {2 * kGiB, 0.5 * kGiB};
  return row;
}

std::vector<std::string> texts(const Row& row) {
  std::vector<std::string> texts;
  for (const Cell& cell : row.cells) texts.push_back(cell.text());
  return texts;
}

TEST(TimelineTable, MeasuredRowsHaveMedianRangeAndRatio) {
  Outcome slow = measured("no skips", {1, 2, 4});
  slow.experiment.published = {30.5, 1.5 * kGiB};
  const Table table =
      timeline_table(make_benchmark(), {measured("all on", {1, 1, 2}), slow});
  EXPECT_EQ(table.title,
            "Toy: (3,4), measured on cuda:0, cuda:1, batch 10 in 5 "
            "micro-batches, checkpoint except_last, balance 1,2");
  EXPECT_THAT(table.columns,
              ElementsAre("mode", "samples/s", "range", "of all on", "peak GiB",
                          "idle %", "their speed", "their GiB"));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_THAT(
      texts(table.rows[0]),
      ElementsAre("measured", "10.00", "5.0..10.0", "1.000", "", "", "", ""));
  EXPECT_THAT(texts(table.rows[1]),
              ElementsAre("measured", "5.00", "2.5..10.0", "0.500", "", "",
                          "30.500", "1.5"));
  EXPECT_EQ(table.rows[1].durations.size(), 3u);
}

TEST(TimelineTable, SimulatedRowsTellMemoryOfAllDevicesAndIdleTime) {
  const Table table =
      timeline_table(make_benchmark(), {simulated("all on", 0.5)});
  EXPECT_EQ(table.title,
            "Toy: (3,4), simulated, batch 10 in 5 micro-batches, checkpoint "
            "except_last, balance 1,2");
  EXPECT_THAT(
      texts(table.rows[0]),
      ElementsAre("simulated", "20.00", "", "1.000", "2.5", "25.0", "", ""));
}

TEST(TimelineTable, AMeasuredTimelineHasNoMemory) {
  Outcome row = measured("all on", {1});
  row.timeline.emplace();
  const Table table = timeline_table(make_benchmark(), {row});
  EXPECT_TRUE(table.rows[0].cells.at(4).is_nothing());
  EXPECT_EQ(table.rows[0].cells.at(5).text(), "0.0");
}

TEST(TimelineTable, WithoutTheBaseThereIsNoRatio) {
  const Table table =
      timeline_table(make_benchmark(), {measured("no skips", {1})});
  EXPECT_TRUE(table.rows[0].cells.at(3).is_nothing());
}

TEST(TimelineTable, RowsWithoutAResultTellWhy) {
  Outcome row = measured("no streams", {});
  row.error = "left out";
  const Table table =
      timeline_table(make_benchmark(), {measured("all on", {1}), row});
  EXPECT_EQ(table.rows[0].error, "");
  EXPECT_EQ(table.rows[1].error, "left out");
  EXPECT_TRUE(table.rows[1].cells.at(1).is_nothing());
}

}  // namespace
}  // namespace gpipe::benchmarks
