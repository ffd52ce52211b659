// Tests the timeline that a training step returns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::cut;
using testing::device;
using testing::devices;
using ::testing::IsEmpty;
using testing::mean_square;
using ::testing::UnorderedElementsAreArray;
using torch::Tensor;

constexpr int kRows = 2;  // per micro-batch

struct TimedModel {
  torch::nn::Sequential (*make)();
  int64_t layers, width, outputs;
};
constexpr TimedModel kLinear = {testing::linear_model, 6, 6, 3};
constexpr TimedModel kSkip = {testing::skip_model, 7, 4, 4};

Timeline timeline_of_step(const TimedModel& model, const Schedule& schedule,
                          const TrainOptions& options,
                          Checkpoint mode = Checkpoint::kNever) {
  GPipe pipeline(model.make(),
                 testing::options_for(schedule, model.layers, mode));
  const int64_t rows = kRows * num_microbatches(schedule);
  const StepResult result = pipeline->train_step(
      torch::randn({rows, model.width}, torch::kDouble)
          .to(device())
          .requires_grad_(),
      torch::zeros({rows, model.outputs}, torch::kDouble), mean_square,
      schedule, TrainOptions(options).timeline(true));
  return *result.timeline;
}

const Span& span_of(const Timeline& timeline, const Action& action) {
  for (const auto& spans : timeline.ranks) {
    for (const Span& span : spans) {
      if (to_string(span.action) == to_string(action)) return span;
    }
  }
  throw std::runtime_error("no " + to_string(action));
}

// Returns texts such as "0F0 0>1 128": action, ranks, bytes.
std::vector<std::string> names_of(const std::vector<Transfer>& transfers) {
  std::vector<std::string> names;
  for (const Transfer& each : transfers) {
    names.push_back(to_string(each.action) + " " + std::to_string(each.from) +
                    ">" + std::to_string(each.to) + " " +
                    std::to_string(static_cast<int64_t>(each.bytes)));
  }
  return names;
}

// Keeps the transfers whose two ranks are on different devices.
std::vector<std::string> if_copied(std::vector<std::string> names) {
  const auto stays = [](const std::string& name) {
    return device(name[4] - '0') == device(name[6] - '0');
  };
  names.erase(std::remove_if(names.begin(), names.end(), stays), names.end());
  return names;
}

// Holds for any schedule.
TEST(Timeline, TheCausesOfIdleTimeAddUpToIt) {
  for (const std::string& name : schedule_names()) {
    const Schedule schedule =
        named_schedule(name, 3, 6, fixed_stages_per_rank(name).value_or(2));
    const Timeline timeline = timeline_of_step(kLinear, schedule, {});
    const auto parts = idle_parts(timeline);
    ASSERT_EQ(parts.size(), 3);
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_GT(timeline.idle[r], 0) << name;
      EXPECT_NEAR(parts[r].total(), timeline.idle[r], 1e-9 * timeline.idle[r])
          << name << ", rank " << r;
      EXPECT_EQ(parts[r].remote, 0);
    }
  }
}

TEST(Timeline, HasTheCopiesBetweenDevices) {
  const Timeline timeline =
      timeline_of_step(kLinear, one_forward_one_backward(3, 2), {});
  // Each transfer has two rows of eight numbers of eight bytes.
  EXPECT_THAT(
      names_of(timeline.transfers),
      UnorderedElementsAreArray(if_copied(
          {"0F0 0>1 128", "0F1 0>1 128", "1F0 1>2 128", "1F1 1>2 128",
           "2B0 2>1 128", "2B1 2>1 128", "1B0 1>0 128", "1B1 1>0 128"})));
}

TEST(Timeline, HasTheCopiesOfBackwardsInTwoPartsAndOfSkipTensors) {
  const Timeline timeline = timeline_of_step(kSkip, zero_bubble_h1(3, 1), {});
  // Two stages before the last one stash a skip tensor for it. The inner one,
  // which the second stage makes, has integers and so no gradient.
  std::set<std::string> names;
  for (const std::string& name : names_of(timeline.transfers)) {
    names.insert(name.substr(0, 7));
  }
  std::set<std::string> expected;
  for (const std::string& name : if_copied({"0F0 0>1", "1F0 1>2", "0F0 0>2",
                                            "2I0 2>1", "1I0 1>0", "2I0 2>0"})) {
    expected.insert(name);
  }
  EXPECT_EQ(names, expected);
}

// An action starts, by the clock of its device, when its inputs have been
// copied to that device. Waiting for them is idle time.
TEST(Timeline, AnActionStartsWhenWhatItNeedsIsThere) {
  const Timeline timeline =
      timeline_of_step(kLinear, one_forward_one_backward(3, 4), {});
  for (const Transfer& each : timeline.transfers) {
    EXPECT_GE(each.sent, each.start);
    const bool forward = each.action.kind == ActionKind::kForward;
    const Action next = {each.action.stage + (forward ? 1 : -1),
                         each.action.kind, each.action.microbatch};
    EXPECT_GE(span_of(timeline, next).start, each.end) << to_string(next);
    EXPECT_GE(each.start, span_of(timeline, each.action).start)
        << to_string(each.action);
  }
}

TEST(Timeline, RecomputesAreSpansOfTheirOwn) {
  const Timeline timeline = timeline_of_step(
      kLinear, one_forward_one_backward(2, 3), {}, Checkpoint::kExceptLast);
  for (const auto& spans : timeline.ranks) {
    std::map<ActionKind, int> count;
    for (const Span& span : spans) ++count[span.action.kind];
    EXPECT_EQ(count, (std::map<ActionKind, int>{{ActionKind::kForward, 3},
                                                {ActionKind::kBackward, 3},
                                                {ActionKind::kRecompute, 2}}));
  }
}

TEST(Timeline, MemoryIsReadAroundEveryAction) {
  std::atomic<int> asked{0};
  std::atomic<bool> other_device{false};
  const auto reader = [&](const c10::Device& of) -> std::optional<double> {
    if (of != device(0) && of != device(1)) other_device = true;
    return ++asked;
  };
  const Timeline timeline = timeline_of_step(
      kLinear, one_forward_one_backward(2, 3), TrainOptions().memory(reader));
  EXPECT_FALSE(other_device);
  EXPECT_EQ(asked, 2 * (1 + 2 * 6));
  ASSERT_EQ(timeline.memory.size(), 2);
  for (std::size_t r = 0; r < 2; ++r) {
    const auto& points = timeline.memory[r];
    ASSERT_EQ(points.size(), 1 + 2 * 6);
    EXPECT_EQ(points[0].time, 0);
    EXPECT_EQ(points[0].bytes, r + 1);
    for (std::size_t k = 0; k < 6; ++k) {
      const Span& span = timeline.ranks[r][k];
      EXPECT_EQ(points[1 + 2 * k].time, span.start);
      EXPECT_EQ(points[2 + 2 * k].time, span.end);
      EXPECT_GT(points[2 + 2 * k].bytes, points[1 + 2 * k].bytes);
    }
    EXPECT_EQ(timeline.peak_bytes[r], points.back().bytes);
  }
}

TEST(Timeline, MemoryIsLeftOutWhereItIsNotKnown) {
  const Schedule schedule = one_forward_one_backward(2, 2);
  for (const MemoryReader& reader :
       {MemoryReader(),
        MemoryReader([](const c10::Device&) { return std::nullopt; })}) {
    const Timeline timeline =
        timeline_of_step(kLinear, schedule, TrainOptions().memory(reader));
    EXPECT_THAT(timeline.memory, IsEmpty());
    EXPECT_THAT(timeline.peak_bytes, IsEmpty());
  }
}

TEST(Timeline, MemoryIsThatOfTheDevicesUnlessToldOtherwise) {
  const Timeline timeline =
      timeline_of_step(kLinear, one_forward_one_backward(2, 2), {});
  ASSERT_EQ(timeline.peak_bytes.size(), 2);
  // The parameters of each half are always in memory.
  for (std::size_t r = 0; r < 2; ++r) {
    for (const MemoryPoint& each : timeline.memory[r]) {
      EXPECT_GE(each.bytes, 8 * 27) << r;
    }
  }
}

}  // namespace
}  // namespace gpipe
