// Tests of plan() over all schedules.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "balancing/infeasible.h"
#include "balancing/plan.h"
#include "balancing/plan_replicas.h"
#include "balancing/profile/testing.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/testing/thrown.h"

namespace gpipe::balancing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

Profile random_profile(std::mt19937& random, std::size_t layers) {
  Profile profile = even_profile(std::vector<double>(layers));
  for (std::size_t k = 0; k < layers; ++k) {
    const auto number = [&](unsigned most) {
      return static_cast<double>(1 + random() % most);
    };
    profile.times[k] = {number(9), number(18)};
    profile.memory.layers[k].output_bytes = random() % 9;
    profile.memory.saved[k].bytes = random() % 30;
  }
  return profile;
}

std::vector<PlanDevice> accelerators(
    int64_t count, double bytes = std::numeric_limits<double>::infinity()) {
  std::vector<PlanDevice> devices;
  for (int64_t k = 0; k < count; ++k) {
    devices.push_back(
        PlanDevice(torch::Device(torch::kCUDA, static_cast<int8_t>(k)))
            .memory_bytes(bytes));
  }
  return devices;
}

PlanOptions only(const std::string& schedule, int64_t chunks) {
  return PlanOptions().schedules({schedule}).chunks({chunks});
}

Plan even_plan(const PlanOptions& options,
               const std::vector<PlanDevice>& devices = accelerators(2)) {
  return plan(even_profile({1, 1, 1, 1}), 8, devices, options);
}

double seconds_on_two(const Profile& profile, int64_t rows,
                      const PlanOptions& options) {
  return plan(profile, rows, accelerators(2), options).step_seconds;
}

TEST(PlanSearchTest, IsNeverSlowerThanAnySingleSchedule) {
  std::mt19937 random(0);
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    const auto layers = 4 + random() % 9;
    const auto count = static_cast<int64_t>(2 + random() % 2);
    const Profile profile = random_profile(random, layers);
    auto devices = accelerators(count, round % 3 == 0 ? 500 : 1e9);
    devices[0].speed(1 + static_cast<double>(random() % 2));
    const auto options = PlanOptions().latency(0.5).bandwidth(
        round % 2 ? 4 : std::numeric_limits<double>::infinity());
    const auto seconds = [&](const PlanOptions& each) {
      try {
        return plan(profile, 4, devices, each).step_seconds;
      } catch (const InfeasibleError&) {
        return std::numeric_limits<double>::infinity();
      }
    };
    const double best = seconds(options);
    const auto check = [&](double other) {
      EXPECT_LE(best, other * (1 + 1e-9));
    };
    for (const std::string& name : schedule_names()) {
      const int stages = fixed_stages_per_rank(name).value_or(2);
      if (name == "forward-only") continue;
      if (static_cast<std::size_t>(stages * count) > layers) continue;
      SCOPED_TRACE(name);
      check(seconds(PlanOptions(options).schedules({name})));
    }
  }
}

TEST(PlanSearchTest, PredictsTheStepOfItsSchedule) {
  const Plan result = even_plan(only("zbv", 4));
  EXPECT_THAT(result.balance, ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(result.stages_per_rank, 2);
  EXPECT_EQ(result.placement, Placement::kV);
  // f = i = w = 2 per stage.
  EXPECT_EQ(result.step_seconds, 2 * 4 * 6 + 2);
  ASSERT_THAT(result.partitions, SizeIs(2));
  EXPECT_THAT(result.partitions[0].stages, ElementsAre(0, 3));
  EXPECT_EQ(result.partitions[0].layers, 2);
  EXPECT_EQ(result.partitions[0].forward, 4);
  Costs costs;
  costs.forward.assign(4, 2);
  costs.backward.assign(4, 4);
  costs.backward_input.assign(4, 2);
  costs.backward_weight.assign(4, 2);
  EXPECT_EQ(simulate(result.schedule(), costs).makespan, result.step_seconds);
  EXPECT_EQ(result.timeline.makespan, result.step_seconds);
}

TEST(PlanSearchTest, UsesMeasuredPartsOfTheBackward) {
  Profile profile = even_profile({1, 1});
  // f = i = w = 1: 4 * 3 + 1.
  EXPECT_EQ(seconds_on_two(profile, 4, only("zb-h1", 4)), 13);
  for (LayerTime& time : profile.times) {
    time.backward_input = 2;
    time.backward_weight = 1;
  }
  EXPECT_EQ(seconds_on_two(profile, 4, only("zb-h1", 4)),
            4 * (1 + 2 + 1) + std::max({1, 2, 1 + 2 - 1}));
}

TEST(PlanSearchTest, AddsGradientsOfAllMicrobatchesButTheFirst) {
  Profile profile = even_profile({1, 1});
  for (LayerTime& time : profile.times) time.accumulate = 4;
  // Of 4 micro-batches 3 add, so each backward takes 2 + 4 * 3 / 4 = 5.
  for (const char* schedule : {"fill-drain", "1f1b"}) {
    EXPECT_EQ(seconds_on_two(profile, 4, only(schedule, 4)), (4 + 1) * (1 + 5));
  }
  // f = i = 1, w = 1 + 3.
  EXPECT_EQ(seconds_on_two(profile, 4, only("zb-h1", 4)), 4 * (1 + 1 + 4) + 1);
  // It does not depend on the rows: 8 rows take twice as long to compute.
  EXPECT_EQ(seconds_on_two(profile, 8, only("1f1b", 4)), (4 + 1) * (2 + 4 + 3));
  // A single micro-batch adds nothing.
  EXPECT_EQ(seconds_on_two(profile, 1, only("1f1b", 1)), 2 * (1 + 2));
}

// A layer without clone() that counts its forwards on CPUs.
struct CountingImpl : torch::nn::Module {
  explicit CountingImpl(int& calls) : calls(calls) {}
  torch::Tensor forward(torch::Tensor x) {
    if (x.is_cpu()) ++calls;
    return 2 * x;
  }
  int& calls;
};
TORCH_MODULE(Counting);

TEST(PlanSearchTest, MeasuresThePartsOfBackwardsIfAScheduleSplitsThem) {
  int calls = 0;
  torch::nn::Sequential model(torch::nn::Linear(2, 2), Counting(calls));
  const auto sweeps = [&](std::vector<std::string> schedules) {
    calls = 0;
    plan(model, torch::ones({4, 2}), {torch::kCPU, torch::kCPU},
         PlanOptions()
             .schedules(std::move(schedules))
             .chunks({2})
             .workers(1)
             .profile(TimeOptions().timeout(0)));
    return calls;
  };
  const int whole = sweeps({"1f1b"});
  EXPECT_EQ(sweeps({"1f1b", "zb-h1"}), whole + 2);
  EXPECT_EQ(sweeps({}), whole + 2);
}

// A plan of a schedule, run by a pipeline.
void expect_plain_gradients(const Plan& plan, torch::nn::Sequential model,
                            const torch::Tensor& input) {
  const auto loss = [](torch::Tensor output, torch::Tensor target) {
    return torch::mse_loss(output, target);
  };
  const torch::Tensor target = torch::ones({input.size(0), 2}, torch::kDouble);
  loss(model->forward(input), target).backward();
  std::vector<torch::Tensor> expected;
  for (torch::Tensor& each : model->parameters()) {
    expected.push_back(each.grad().clone());
    each.mutable_grad().reset();
  }
  GPipe pipeline(model, plan.options());
  pipeline->train_step(input, target, loss, plan.schedule());
  const auto parameters = pipeline->parameters();
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    EXPECT_TRUE(torch::allclose(parameters[k].grad(), expected[k]));
  }
}

TEST(PlanSearchTest, IsRunByAPipeline) {
  using torch::nn::Linear, torch::nn::Tanh;
  torch::manual_seed(0);
  const torch::Tensor input = torch::rand({6, 4}, torch::kDouble);
  for (const char* schedule : {"1f1b", "interleaved-1f1b", "zb-h1", "v-half"}) {
    for (const Checkpoint mode :
         {Checkpoint::kNever, Checkpoint::kExceptLast}) {
      SCOPED_TRACE(schedule);
      torch::nn::Sequential model(Linear(4, 8), Tanh(), Linear(8, 8), Tanh(),
                                  Linear(8, 2));
      model->to(torch::kDouble);
      const Plan result = plan(model, input, {torch::kCPU, torch::kCPU},
                               PlanOptions()
                                   .schedules({schedule})
                                   .stages_per_rank({1, 2})
                                   .checkpoints({mode})
                                   .chunks({3})
                                   .profile(TimeOptions().timeout(0)));
      EXPECT_EQ(result.schedule_name, schedule);
      expect_plain_gradients(result, model, input);
    }
  }
}

TEST(PlanSearchTest, RecomputesTheStagesForWhichMemoryIsShort) {
  // The first rank of 1F1B holds two micro-batches, the second one: 20 bytes
  // each, and 16 bytes of parameters.
  const Plan result =
      even_plan(only("1f1b", 8), accelerators(2, 16 + 2 * 20 - 1));
  EXPECT_THAT(result.recomputed_stages, ElementsAre(true, false));
  EXPECT_EQ(result.checkpoint, Checkpoint::kAlways);
  EXPECT_EQ(result.partitions[0].memory_bytes, 16 + 20);
  EXPECT_EQ(to_csv(result.schedule()).find("1R"), std::string::npos);
  EXPECT_NE(to_csv(result.schedule()).find("0R7"), std::string::npos);
  std::ostringstream text;
  text << result;
  EXPECT_THAT(text.str(), HasSubstr("checkpoint where_needed"));
  EXPECT_THAT(text.str(), HasSubstr("bound by memory: partition 0"));
}

TEST(PlanSearchTest, SaysNeverIfMemoryIsShortForNoStage) {
  // The search for kWhereNeeded finds a better cut than that for kNever, and
  // recomputes nothing there.
  std::mt19937 random(29);
  Profile profile = even_profile(std::vector<double>(16));
  for (std::size_t k = 0; k < 16; ++k) {
    const double forward = 5 + random() % 11;
    profile.times[k] = {forward, 2 * forward};
    profile.memory.saved[k].bytes = 5 + random() % 11;
  }
  const auto options =
      only("1f1b", 8).checkpoints({Checkpoint::kNever, Checkpoint::kAlways});
  double most = 0;
  for (const PlannedPartition& each :
       plan(profile, 8, accelerators(6), options).partitions) {
    most = std::max(most, each.memory_bytes);
  }
  const Plan result = plan(profile, 8, accelerators(6, 0.92 * most), options);
  ASSERT_THAT(result.candidates, SizeIs(3));
  ASSERT_GT(result.candidates[0].step_seconds, result.step_seconds);
  ASSERT_TRUE(result.candidates[2].recompute_where_needed);
  ASSERT_EQ(result.candidates[2].step_seconds, result.step_seconds);
  // train_step() adds recomputes to a schedule without any, as the options say.
  EXPECT_EQ(result.options().checkpoint(), Checkpoint::kNever);
  EXPECT_THAT(result.recomputed_stages, IsEmpty());
  EXPECT_EQ(to_csv(result.schedule()).find('R'), std::string::npos);
}

TEST(PlanSearchTest, OffloadsOnAcceleratorsOnly) {
  auto devices = accelerators(2, 170);
  for (PlanDevice& device : devices) device.host_bandwidth(20);
  const auto options =
      only("fill-drain", 8).checkpoints({Checkpoint::kNever}).offload(true);
  const Plan result = even_plan(options, devices);
  EXPECT_TRUE(result.offload);
  EXPECT_NE(to_csv(result.schedule()).find("0O0"), std::string::npos);
  EXPECT_LE(result.partitions[0].memory_bytes, 170);
  EXPECT_THROW(even_plan(PlanOptions(options).offload(false), devices),
               InfeasibleError);
  for (PlanDevice& device : devices) device.device(torch::kCPU);
  EXPECT_THROW(even_plan(PlanOptions(options).workers(2), devices),
               InfeasibleError);
}

TEST(PlanSearchTest, SaysWhatWouldBeEnough) {
  double enough = 0;
  try {
    even_plan({}, accelerators(2, 10));
    FAIL() << "fits";
  } catch (const InfeasibleError& error) {
    enough = error.least_bytes();
    EXPECT_DOUBLE_EQ(error.least_factor(), enough / 10);
  }
  EXPECT_NO_THROW(even_plan({}, accelerators(2, enough)));
  EXPECT_THROW(even_plan({}, accelerators(2, std::nextafter(enough, 0))),
               InfeasibleError);
}

TEST(PlanSearchTest, KnowsTheLinkOfEachPair) {
  // Six layers, of which the third passes on nothing, on three devices. The
  // link to the last device is slow.
  Profile profile = even_profile({1, 1, 1, 1, 1, 1});
  profile.memory.layers[2].output_bytes = 0;
  std::vector<PlanLink> links(9);
  links[1 * 3 + 2] = links[2 * 3 + 1] = {0, 1};
  const Plan result =
      plan(profile, 4, accelerators(3), only("1f1b", 4).links(links));
  EXPECT_EQ(result.balance[0] + result.balance[1], 3);
}

TEST(PlanSearchTest, GradientsTakeTheLinkBack) {
  // 3 s of work on each of two devices, and one slow copy, there or back.
  const Profile profile = even_profile({1, 1});
  for (const std::size_t slow : {1, 2}) {  // from 0 to 1, from 1 to 0
    SCOPED_TRACE(slow);
    std::vector<PlanLink> links(4);
    links[slow].latency = 5;
    EXPECT_EQ(seconds_on_two(profile, 1, only("1f1b", 1).links(links)),
              2 * 3 + 5);
    // 6 bytes cross the boundary each way, at 2 bytes per second or at once.
    links[slow] = {0, 2};
    EXPECT_EQ(seconds_on_two(profile, 1, only("1f1b", 1).links(links)),
              2 * 3 + 6 / 2);
  }
}

TEST(PlanSearchTest, OneMoreDeviceHasTheLinksOfTheLastOne) {
  // Gradients go back in 1 s, and activations at once. So do they between the
  // second device and a third one.
  std::vector<PlanLink> links(4);
  links[1 * 2 + 0].latency = 1;
  const Plan result = plan(even_profile({8, 8, 8}), 2, accelerators(2),
                           only("fill-drain", 2).links(links));
  ASSERT_EQ(result.alternatives[0].change, "one more device");
  EXPECT_EQ(result.alternatives[0].step_seconds, (2 + 3 - 1) * 24 + 2);
}

TEST(PlanSearchTest, OneMoreDeviceIsNoMoreCores) {
  const Plan result = plan(even_profile({8, 8, 8}), 2, accelerators(2),
                           only("fill-drain", 2).workers(1));
  EXPECT_EQ(result.step_seconds, 2 * 3 * 24);
  ASSERT_EQ(result.alternatives[0].change, "one more device");
  EXPECT_EQ(result.alternatives[0].step_seconds, result.step_seconds);
}

TEST(PlanSearchTest, IsBoundByTheRankThatIsFull) {
  // The second device has no memory, and its layer needs none.
  Profile profile = even_profile({1, 1});
  profile.memory.layers[0].output_bytes = 0;
  profile.memory.layers[1] = LayerMemory();
  profile.memory.saved[1].bytes = 0;
  auto devices = accelerators(2, 0);
  devices[0].memory_bytes(2 * 4 + 2 * 20);
  const Plan result = plan(profile, 8, devices,
                           PlanOptions()
                               .schedules({"1f1b"})
                               .chunks({2, 4})
                               .stages_per_rank({1})
                               .checkpoints({Checkpoint::kNever})
                               .param_scale(2)
                               .overhead(100));
  EXPECT_EQ(result.chunks, 4);
  ASSERT_TRUE(result.bound);
  EXPECT_EQ(result.bound->kind, PlanBoundKind::kMemory);
  EXPECT_EQ(result.bound->rank, 0);
  EXPECT_EQ(result.bound->share, 1);
}

TEST(PlanSearchTest, ExplainsItself) {
  std::ostringstream text;
  const Plan result =
      even_plan(PlanOptions()
                    .chunks({8})
                    .checkpoints({Checkpoint::kNever})
                    .schedules({"fill-drain", "looped-bfs", "zb-h1"})
                    .stages_per_rank({1, 2}));
  text << result;
  EXPECT_EQ("\n" + text.str(), R"(
zb-h1, 1 stage per rank, 8 micro-batches, checkpoint never: a step is predicted to take 50 s
  partition  device  layers  forward  backward  memory         of  idle  of the bubble  bound by
          0  cuda:0       2      2 s       4 s    56 B  unlimited   4 %           50 %      time
          1  cuda:1       2      2 s       4 s    56 B  unlimited   4 %           50 %      time
bound by compute: partition 0 computes for 96 % of the step
the best of each schedule:
    schedule  stages per rank  micro-batches  checkpoint  offload  step  longer by
       zb-h1                1              8       never       no  50 s     +0.0 %
  looped-bfs                2              8       never       no  51 s     +2.0 %
  fill-drain                1              8       never       no  54 s     +8.0 %
with one more device: 48 s (-4.0 %)
)");
  const auto json = nlohmann::json::parse(to_json(result));
  EXPECT_EQ(json["schedule"], "zb-h1");
  EXPECT_EQ(json["step_seconds"], 50);
  EXPECT_EQ(json["balance"], (std::vector<int64_t>{2, 2}));
  EXPECT_TRUE(json["ranks"][0]["memory_limit"].is_null());
  EXPECT_EQ(json["bound"]["by"], "compute");
  EXPECT_EQ(json["families"].size(), 3);
  EXPECT_EQ(json["alternatives"][0]["with"], "one more device");
  EXPECT_THAT(to_svg(result.timeline), HasSubstr("0F0"));
}

TEST(PlanSearchTest, IsReadAsItWasWritten) {
  const Plan original = even_plan(only("1f1b", 8).schedules({"1f1b", "zbv"}),
                                  accelerators(2, 16 + 2 * 20 - 1));
  const Plan read = plan_from_json(to_json(original), "it");
  EXPECT_EQ(to_json(read), to_json(original));
  EXPECT_EQ(to_csv(read.schedule()), to_csv(original.schedule()));
  EXPECT_EQ(read.options().devices(), original.options().devices());
  EXPECT_EQ(read.recomputed_stages, original.recomputed_stages);
}

nlohmann::json json_of(const Plan& plan) {
  return nlohmann::json::parse(to_json(plan));
}

std::string read_error(const nlohmann::json& json) {
  return testing::thrown<c10::ValueError>(
      [&] { plan_from_json(json.dump(), "it"); });
}

TEST(PlanSearchTest, NamesWhatIsWrongWithAFile) {
  const auto good = json_of(even_plan({}));
  const auto error_of = [&](const std::string& member, const char* value) {
    auto json = good;
    json[member] = nlohmann::json::parse(value);
    return read_error(json);
  };
  EXPECT_EQ(error_of("step_seconds", "1"), "no error");
  EXPECT_THAT(error_of("format", "\"gpipe plan 9\""),
              HasSubstr("should be \"gpipe plan 1\""));
  EXPECT_THAT(error_of("schedule", "\"2f2b\""),
              HasSubstr("it: there is no schedule \"2f2b\""));
  EXPECT_THAT(error_of("schedule", "\"forward-only\""),
              HasSubstr("is no schedule that trains"));
  EXPECT_THAT(error_of("chunks", "0"), HasSubstr("should be 1 to"));
  EXPECT_THAT(error_of("balance", "[4]"), HasSubstr("there are 1 stages on 2"));
  EXPECT_THAT(error_of("balance", "[4, -1]"), HasSubstr("has -1, but should"));
  EXPECT_THAT(error_of("checkpoint", "\"some\""),
              HasSubstr("should be one of always, except_last, never,"));
  EXPECT_THAT(error_of("colour", "1"), HasSubstr("there is no \"colour\""));
  EXPECT_THAT(error_of("offload", "1"), HasSubstr("true or false"));
}

TEST(PlanSearchTest, AFileOfMoreCellsThanMemoryHoldsIsRefused) {
  const auto large = [](int stages) {
    auto json =
        json_of(plan(even_profile(std::vector<double>(stages, 1)), 8,
                     accelerators(stages), PlanOptions().schedules({"1f1b"})));
    json["chunks"] = 1 << 20;
    return json;
  };
  EXPECT_EQ(plan_from_json(large(16).dump(), "it").chunks, 1 << 20);
  EXPECT_THAT(read_error(large(17)),
              HasSubstr("17 stages with 1048576 micro-batches are too many; "
                        "their product must be at most 16777216"));
}

TEST(PlanSearchTest, AFileWhosePartsDoNotFitTogetherIsRefused) {
  using Json = nlohmann::json;
  const Json good = json_of(even_plan(only("1f1b", 8)));
  const Json v = json_of(even_plan(only("zbv", 8)));
  const auto with = [](Json json, const char* at, const Json& value) {
    json[Json::json_pointer(at)] = value;
    return json;
  };
  EXPECT_EQ(read_error(good), "no error");
  EXPECT_EQ(read_error(with(good, "/ranks/1/stages", {0})),
            "it: ranks 1: \"stages\" has 0, but should have 1");
  EXPECT_EQ(read_error(with(v, "/ranks/0/stages", {0, 2})),
            "it: ranks 0: \"stages\" has 0, 2, but should have 0, 3");
  EXPECT_EQ(read_error(with(good, "/ranks/0/layers", 400)),
            "it: ranks 0: \"layers\" is 400, but the \"balance\" gives it 2");
  EXPECT_EQ(read_error(with(good, "/balance/0", 1 << 21)),
            "it: a stage has 2097152 layers, but should have 1 to 1048576");
  EXPECT_EQ(read_error(with(good, "/bound/rank", 2)),
            "it: \"bound\" has the rank 2, but there are 2 ranks");
  EXPECT_EQ(read_error(with(v, "/placement", "loop")),
            "it: \"placement\" should be \"v\" for zbv");
  EXPECT_EQ(read_error(with(good, "/checkpoint", "where_needed")),
            "it: \"recomputed_stages\" has 0 entries for 2 stages, but with "
            "the checkpoint mode \"where_needed\" it should have 2");
  EXPECT_EQ(read_error(with(good, "/recomputed_stages", {true, false})),
            "it: \"recomputed_stages\" has 2 entries for 2 stages, but with "
            "the checkpoint mode \"never\" it should have 0");
}

TEST(PlanSearchTest, AFileThatRecomputesNoStageIsReadAsNever) {
  auto json = json_of(even_plan(only("1f1b", 8)));
  json["checkpoint"] = "where_needed";
  json["recomputed_stages"] = {false, false};
  const Plan read = plan_from_json(json.dump(), "it");
  EXPECT_EQ(read.options().checkpoint(), Checkpoint::kNever);
  EXPECT_THAT(read.recomputed_stages, IsEmpty());
}

TEST(PlanReplicasTest, DivideRowsDevicesAndTheStateOfTheOptimizer) {
  const Profile profile = even_profile({1, 1, 1, 1});
  const auto options = only("1f1b", 4).param_scale(4).bandwidth(2);
  const auto plans =
      plan_replicas(profile, 16, accelerators(4), {1, 2, 4}, false, options);
  ASSERT_THAT(plans, SizeIs(3));
  for (const ReplicatedPlan& each : plans) {
    SCOPED_TRACE(each.replicas);
    EXPECT_EQ(each.plan.step_seconds,
              each.plan.timeline.makespan + each.plan.sum_seconds);
    EXPECT_EQ(each.plan.partitions.size(), 4 / each.replicas);
    // A rank has 16 / (4 / d) bytes of gradients.
    const auto d = static_cast<double>(each.replicas);
    EXPECT_EQ(each.plan.sum_seconds, 2 * (d - 1) * 4 / 2);
  }
  // Four replicas have no bubble: 4 rows of 4 layers of 3 s, and 12 s.
  EXPECT_EQ(plans[0].replicas, 4);
  EXPECT_EQ(plans[0].plan.step_seconds, 4 * 4 * 3 + 12);
  EXPECT_EQ(plans[0].plan.families[0].step_seconds, 4 * 4 * 3 + 12);
  // Half of the time for sums is saved by faster links.
  EXPECT_EQ(plans[0].plan.alternatives.back().change, "links twice as fast");
  EXPECT_EQ(plans[0].plan.alternatives.back().step_seconds, 4 * 4 * 3 + 6);
  EXPECT_EQ(plans[0].plan.bound->kind, PlanBoundKind::kLinks);
  EXPECT_EQ(plans[0].plan.bound->share, 12.0 / 60);
  const auto sharded =
      plan_replicas(profile, 16, accelerators(4), {4}, true, options);
  EXPECT_EQ(plans[0].plan.partitions[0].memory_bytes -
                sharded[0].plan.partitions[0].memory_bytes,
            16 * (4 - 2.5));
}

TEST(PlanReplicasTest, CutForTheSumsToo) {
  Profile profile = even_profile({1, 1, 1, 1});
  for (LayerMemory& layer : profile.memory.layers) {
    layer.parameter_bytes = layer.trained_bytes = 8;
  }
  const auto options = only("1f1b", 2).bandwidth(1);
  const Plan even =
      plan_replicas(profile, 4, accelerators(4), {2}, false, options)[0].plan;
  EXPECT_THAT(even.balance, ElementsAre(2, 2));
  EXPECT_EQ(even.sum_seconds, 2 * 16 / 2);
  EXPECT_EQ(even.step_seconds, even.timeline.makespan + 16);
  // If one layer has most of the bytes, its rank gets no other layer.
  LayerMemory& last = profile.memory.layers[3];
  last.parameter_bytes = last.trained_bytes = 200;
  const Plan shifted =
      plan_replicas(profile, 4, accelerators(4), {2}, false, options)[0].plan;
  EXPECT_THAT(shifted.balance, ElementsAre(3, 1));
  EXPECT_EQ(shifted.sum_seconds, 200);
  EXPECT_THROW(plan_replicas(profile, 4, accelerators(4), {2}, false,
                             PlanOptions(options).gradient_sums({PlanLink()})),
               c10::ValueError);
}

TEST(PlanReplicasTest, AreAsSlowAsTheWorstDeviceOfARank) {
  auto devices = accelerators(4);
  devices[3].speed(0.5);  // rank 1 of replica 1
  const auto plans = plan_replicas(even_profile({1, 1, 1}), 8, devices, {2},
                                   false, only("1f1b", 4));
  EXPECT_THAT(plans[0].plan.balance, ElementsAre(2, 1));
  EXPECT_EQ(plans[0].plan.partitions[1].forward, 2);
  EXPECT_THROW(plan_replicas(even_profile({1, 1, 1}), 8, devices, {3}),
               c10::ValueError);
}

TEST(PlanSearchTest, TakesUpToTheLargestNumberOfRows) {
  constexpr int64_t kRows = std::numeric_limits<int64_t>::max();
  const Profile profile = even_profile({1, 1});
  const auto seconds = static_cast<double>(kRows);  // a forward of a layer
  EXPECT_EQ(seconds_on_two(profile, kRows, only("1f1b", 1)), 2 * 3 * seconds);
  EXPECT_EQ(plan_replicas(profile, kRows, accelerators(2), {2}, false,
                          only("1f1b", 1))[0]
                .plan.step_seconds,
            2 * 3 * seconds / 2);
  for (const int64_t chunks : {kRows, int64_t{1} << 28}) {
    EXPECT_EQ(
        testing::thrown<c10::ValueError>(
            [&] { seconds_on_two(profile, kRows, only("1f1b", chunks)); }),
        "plan: a schedule has at most 2^28 cells, ranks times stages per rank "
        "times micro-batches (ranks: 2, stages per rank: 1, micro-batches: " +
            std::to_string(chunks) + "): use fewer chunks or stages_per_rank");
  }
}

TEST(PlanReplicasTest, ShareTheCoresOfTheMachine) {
  // 8 rows of 4 layers with 3 s each are 96 s of work for two cores.
  const std::vector<PlanDevice> devices(4, torch::kCPU);
  const auto plans =
      plan_replicas(even_profile({1, 1, 1, 1}), 8, devices, {4, 2}, false,
                    PlanOptions().schedules({"1f1b"}).workers(2));
  ASSERT_THAT(plans, SizeIs(2));
  for (const ReplicatedPlan& each : plans) {
    EXPECT_DOUBLE_EQ(each.plan.step_seconds, 96 / 2) << each.replicas;
  }
}

TEST(PlanSearchTest, BytesAboveTheLargestNumberAreRefused) {
  Profile profile = even_profile({1, 1, 1});
  LayerMemory& layer = profile.memory.layers[1];
  layer.parameter_bytes = layer.trained_bytes = 8;
  for (const bool limited : {true, false}) {
    EXPECT_THAT(
        [&] {
          plan(profile, 8, limited ? accelerators(2, 1000) : accelerators(2),
               PlanOptions().chunks({4}).param_scale(1e308));
        },
        ThrowsMessage<std::invalid_argument>(
            HasSubstr("with 4 micro-batches the bytes of layers may add up to "
                      "more than the largest number, 1.79769e+308: use a "
                      "smaller param_scale, which is 1e+308")));
  }
}

TEST(PlanSearchTest, StepsLongerThanTheLargestNumberAreRefused) {
  const auto refused = [](const PlanOptions& options, double speed = 1) {
    auto devices = accelerators(2);
    devices[1].speed(speed).host_bandwidth(1e-320);
    EXPECT_THAT(
        [&] {
          plan(even_profile({1, 1, 1}), 8, devices,
               PlanOptions(options).chunks({4}));
        },
        ThrowsMessage<std::invalid_argument>(
            HasSubstr("with 4 micro-batches the seconds of layers and copies "
                      "may add up to more than the largest number, 1.79769e")));
  };
  refused(PlanOptions().latency(1e308));
  refused(PlanOptions().bandwidth(1e-320));
  refused(PlanOptions().links({{}, {1e308}, {}, {}}));
  refused(PlanOptions().gradient_sums({{}, {0, 1e-310}}));
  refused(PlanOptions().overhead(1e308));
  refused(PlanOptions().offload(true));
  refused(PlanOptions(), /*speed=*/1e-308);
  EXPECT_THROW(plan(torch::nn::Sequential(torch::nn::Linear(2, 2),
                                          torch::nn::Linear(2, 2)),
                    torch::ones({4, 2}), {torch::kCPU, torch::kCPU},
                    PlanOptions().chunks({4}).latency(1e308).profile(
                        TimeOptions().timeout(0))),
               std::invalid_argument);
}

TEST(PlanSearchTest, NamesWhatCannotBe) {
  const Profile profile = even_profile({1, 1, 1});
  const auto error_of = [&](const PlanOptions& options) {
    return testing::thrown<c10::ValueError>(
        [&] { plan(profile, 8, accelerators(2), options); });
  };
  EXPECT_THAT(error_of(PlanOptions().schedules({"2f2b"})),
              HasSubstr("there is no schedule \"2f2b\" that trains; there are "
                        "fill-drain, 1f1b,"));
  EXPECT_THAT(error_of(PlanOptions().schedules({"forward-only"})),
              HasSubstr("no schedule \"forward-only\" that trains"));
  EXPECT_THAT(error_of(PlanOptions().stages_per_rank({0})),
              HasSubstr("must be at least 1, but is 0"));
  EXPECT_THAT(error_of(PlanOptions().stages_per_rank({})),
              HasSubstr("at least 1 number of stages per rank"));
  EXPECT_THAT(error_of(PlanOptions().schedules({"zbv"})),
              HasSubstr("none of the schedules can run 3 layers on 2 devices"));
  EXPECT_THAT(error_of(PlanOptions().links(std::vector<PlanLink>(3))),
              HasSubstr("2 devices have 4 links, but there are 3"));
  // The worst of the replicas' devices and links would leave NaN out.
  const auto error_of_replicas = [&](const std::vector<PlanDevice>& devices,
                                     const PlanOptions& options) {
    return testing::thrown<c10::ValueError>([&] {
      plan_replicas(profile, 8, devices, {2}, /*shard_optimizer=*/false,
                    options);
    });
  };
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  auto devices = accelerators(2);
  devices[1].speed(kNaN);
  EXPECT_THAT(error_of_replicas(devices, PlanOptions()),
              HasSubstr("the speed of device 1 is nan"));
  std::vector<PlanLink> links(4);
  links[1].latency = kNaN;
  EXPECT_THAT(error_of_replicas(accelerators(2), PlanOptions().links(links)),
              HasSubstr("a link has a latency of nan"));
}

}  // namespace
}  // namespace gpipe::balancing
