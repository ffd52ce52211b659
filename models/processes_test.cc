// The models of the papers give the same bits in a pipeline of processes as in
// one process. This covers skip tensors across ranks (U-Net), tuples
// (AmoebaNet-D), dropout, and BatchNorm statistics.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <chrono>
#include <map>
#include <string>
#include <tuple>

#include "gpipe/distributed/testing/comparison.h"
#include "gpipe/distributed/testing/ranks.h"
#include "gpipe/distributed/world.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/process.h"
#include "models/amoebanet.h"
#include "models/unet.h"

namespace gpipe::models {
namespace {

using testing::argument;
using testing::RankProgramEntry;
using testing::RankResult;
using testing::Ranks;
using testing::Setting;
using testing::Subject;
using testing::world_options;

torch::nn::Sequential in_double(torch::nn::Sequential model) {
  model->to(torch::kDouble);
  return model;
}

const std::map<std::string, Subject>& subjects() {
  static const auto* const subjects = new std::map<std::string, Subject>{
      {"unet", {[] { return in_double(unet(2, 1, 4)); }, {3, 8, 8}, {1, 8, 8}}},
      {"amoebanetd",
       {[] { return in_double(amoebanetd(5, 3, 16)); }, {3, 64, 64}, {5}}},
  };
  return *subjects;
}

const RankProgramEntry kTrain("train", [](auto& world) {
  const Subject& subject = subjects().at(argument("model"));
  // Without GPIPE_THOROUGH=1 each model has every second schedule, and both
  // models together have all.
  std::size_t number = argument("model") == "unet" ? 0 : 1;
  for (const auto& [name, setting] :
       testing::settings(world->size(), /*most_stages=*/8, {4})) {
    if (number++ % 2 == 1 && !testing::is_thorough()) continue;
    const bool long_one = name.rfind("1f1b", 0) == 0;
    const auto steps = static_cast<int>(long_one ? testing::rounds(4, 20) : 2);
    testing::train(world, subject, setting, steps, name);
  }
  Setting setting;
  setting.schedule = one_forward_one_backward(world->size(), 4);
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    setting.mode = mode;
    setting.deferred = true;
    testing::train(world, subject, setting, 3, to_string(mode));
  }
});

class ModelsOverProcesses
    : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(ModelsOverProcesses, GiveTheBitsOfOneProcess) {
  const auto [ranks, model] = GetParam();
  const auto results =
      Ranks("train", ranks, {{"model", model}}).wait(std::chrono::minutes(4));
  for (const RankResult& each : results) {
    EXPECT_TRUE(each.ended);
    EXPECT_TRUE(each.exit.ok()) << to_string(each.exit) << "\n" << each.err;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelsOverProcesses,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values("unet",
                                                              "amoebanetd")),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  "Ranks" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace gpipe::models
