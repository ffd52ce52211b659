// Profiles and dry runs of exported programs: they leave nothing behind.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <numeric>
#include <sstream>

#include "balancing/balancing.h"
#include "balancing/plan.h"
#include "gpipe/meta.h"
#include "gpipe/summary.h"
#include "models/exported/exported.h"
#include "models/exported/testing/examples.h"

namespace gpipe {
namespace {

using testing::call;
using testing::difference;
using testing::Example;
using testing::example_names;
using testing::ExportedStep;
using testing::read_example;
using Tensors = std::vector<at::Tensor>;

ExportedStep training_step(ExportedModel& model, const Example& example) {
  torch::manual_seed(7);
  const Tensors outputs = call(model.layers, example.inputs);
  testing::loss_of(outputs, example.weights).backward();
  return testing::step_of(model, outputs);
}

// Calls `profile` with each example and its input, a tensor or a vector, before
// a training step. Expects the step of a model that was not profiled.
template <typename Profile>
void expect_no_traces(const Profile& profile) {
  at::set_num_threads(1);
  for (const std::string& name : example_names()) {
    const Example example = read_example(name);
    ExportedModel fresh = load_exported(example.path);
    const ExportedStep expected = training_step(fresh, example);
    ExportedModel model = load_exported(example.path);
    if (example.inputs.size() == 1) {
      profile(model.layers, example.inputs[0]);
    } else {
      profile(model.layers, example.inputs);
    }
    EXPECT_EQ(difference(training_step(model, example), expected), "") << name;
  }
}

int64_t sum_of(const std::vector<int64_t>& balance) {
  return std::accumulate(balance.begin(), balance.end(), int64_t{0});
}

TEST(ExportedProfilesTest, BalancingBySizeLeavesNoTraces) {
  expect_no_traces([](torch::nn::Sequential& layers, const auto& input) {
    const auto balance = balancing::balance_by_size(2, layers, input);
    EXPECT_EQ(balance.size(), 2u);
    EXPECT_EQ(sum_of(balance), static_cast<int64_t>(layers->size()));
  });
}

TEST(ExportedProfilesTest, BalancingByTimeLeavesNoTraces) {
  expect_no_traces([](torch::nn::Sequential& layers, const auto& input) {
    const auto balance = balancing::balance_by_time(
        3, layers, input, balancing::TimeOptions().timeout(0.01));
    EXPECT_EQ(balance.size(), 3u);
    EXPECT_EQ(sum_of(balance), static_cast<int64_t>(layers->size()));
  });
}

TEST(ExportedProfilesTest, PlansLeaveNoTraces) {
  expect_no_traces([](torch::nn::Sequential& layers, const auto& input) {
    const auto plan =
        balancing::plan(layers, input, {torch::kCPU, torch::kCPU},
                        balancing::PlanOptions().chunks({2}).profile(
                            balancing::TimeOptions().timeout(0.01)));
    ASSERT_EQ(plan.partitions.size(), 2u);
    EXPECT_EQ(plan.partitions[0].layers + plan.partitions[1].layers,
              static_cast<int64_t>(layers->size()));
  });
}

TEST(ExportedProfilesTest, SummariesNamePythonsModules) {
  expect_no_traces([](torch::nn::Sequential& layers, const auto& input) {
    const Summary all = summary(layers, input);
    ASSERT_EQ(all.layers.size(), layers->size());
    std::size_t k = 0;
    for (const auto& child : layers->named_children()) {
      EXPECT_EQ(all.layers[k].name, child.key());
      EXPECT_FALSE(all.layers[k].outputs.empty());
      ++k;
    }
  });
  const Example example = read_example("gpt");
  ExportedModel model = load_exported(example.path);
  std::ostringstream text;
  text << summary(model.layers, example.inputs[0]);
  EXPECT_NE(text.str().find("blocks_0_qkv"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("float32 [8, 12, 31]"), std::string::npos)
      << text.str();
}

TEST(ExportedProfilesTest, LoadedUnderAMetaGuardAModelHasItsShapes) {
  for (const auto& [name, shape] : {std::pair("gpt", "float32 [8, 12, 31]"),
                                    std::pair("photos", "float32 [4, 8]"),
                                    std::pair("regions", "float32 [8, 5]")}) {
    const Example example = read_example(name);
    ExportedModel model = [&] {
      const MetaGuard meta;
      return load_exported(example.path);
    }();
    for (const at::Tensor& each : model.layers->parameters()) {
      EXPECT_TRUE(each.is_meta()) << name;
    }
    ExportedModel with_values = load_exported(example.path);
    const Summary all = summary(model.layers, example.inputs[0]);
    const Summary expected = summary(with_values.layers, example.inputs[0]);
    ASSERT_EQ(all.layers.size(), expected.layers.size()) << name;
    for (std::size_t k = 0; k < all.layers.size(); ++k) {
      EXPECT_EQ(all.layers[k].bytes, expected.layers[k].bytes) << name;
    }
    EXPECT_EQ(all.layers.back().outputs[0].text(), shape);
  }
}

// Its weights have one record, and two of them the same sizes.
TEST(ExportedProfilesTest, WeightsExportedOnTheMetaDeviceAreNotTied) {
  const MetaGuard meta;
  ExportedModel model = load_exported(testing::example_file("weightless.pt2"));
  std::vector<int64_t> elements;
  for (const at::Tensor& each : model.layers->parameters()) {
    EXPECT_TRUE(each.is_meta());
    elements.push_back(each.numel());
  }
  EXPECT_EQ(elements, (std::vector<int64_t>{16, 16, 8, 2}));
  const Summary all = summary(model.layers, at::empty({3, 4}));
  EXPECT_EQ(all.bytes(), 42 * 4);
  EXPECT_EQ(all.layers.back().outputs[0].text(), "float32 [3, 2]");
}

}  // namespace
}  // namespace gpipe
