// Programs whose operators depend on the mode, or on values of tensors.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "models/exported/exported.h"
#include "models/testing/examples.h"
#include "models/testing/files.h"

namespace gpipe {
namespace {

class ExportedModesTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  // Expects Python's training step of the example `name`.
  static void expect_pythons_step(ExportedModel& model,
                                  const std::string& name) {
    const testing::Example example = testing::read_example(name);
    EXPECT_EQ(testing::difference(testing::training_step(model, example),
                                  example.python(), example.tolerance()),
              "")
        << name;
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ExportedModesTest, AnInstanceNormUpdatesItsStatisticsInTrainingOnly) {
  const testing::Example example = testing::read_example("styles");
  ExportedModel model = load_exported(example.path);
  const StateDict dict = model.state_dict();
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::conv1d(example.inputs[0], dict["stem.weight"],
                                  dict["stem.bias"], 1, 1);
  at::Tensor mean = dict["norm.running_mean"].clone();
  at::Tensor var = dict["norm.running_var"].clone();
  EXPECT_TRUE(at::equal(mean, at::zeros({4})));
  (void)at::instance_norm(x, dict["norm.weight"], dict["norm.bias"], mean, var,
                          /*use_input_stats=*/true, /*momentum=*/0.1,
                          /*eps=*/1e-5, /*cudnn_enabled=*/true);
  EXPECT_FALSE(at::equal(mean, at::zeros({4})));
  for (const bool training : {true, false}) {
    model.layers->train(training);
    (void)testing::call(model.layers, example.inputs);
    EXPECT_TRUE(at::equal(dict["norm.running_mean"], mean)) << training;
    EXPECT_TRUE(at::equal(dict["norm.running_var"], var)) << training;
  }
  // In eval() the output depends on the statistics.
  const at::Tensor before = testing::call(model.layers, example.inputs)[0];
  dict["norm.running_mean"].add_(1);
  EXPECT_FALSE(
      at::equal(testing::call(model.layers, example.inputs)[0], before));
  model.layers->train();
  const at::Tensor trained = testing::call(model.layers, example.inputs)[0];
  dict["norm.running_mean"].add_(1);
  EXPECT_TRUE(
      at::equal(testing::call(model.layers, example.inputs)[0], trained));
}

TEST_F(ExportedModesTest, ABatchNormOfOneValuePerChannelIsRefusedInTraining) {
  const testing::Example example = testing::read_example("tiny");
  ExportedModel model = load_exported(example.path);
  const at::Tensor variance = model.state_dict()["1.running_var"];
  const at::Tensor before = variance.clone();
  const at::Tensor row = example.inputs[0].narrow(0, 0, 1);
  const std::string error = testing::value_error_of(
      [&] { (void)testing::call(model.layers, {row}); });
  EXPECT_TRUE(contains(error,
                       "Expected more than 1 value per channel when training, "
                       "but the input of this BatchNorm has the sizes [1, 2]; "
                       "give micro-batches of at least 2 rows"))
      << error;
  EXPECT_TRUE(contains(error, "torch.ops.aten.batch_norm.default")) << error;
  EXPECT_TRUE(at::equal(variance, before));
  model.layers->eval();
  EXPECT_EQ(testing::call(model.layers, {row})[0].size(0), 1);
}

TEST_F(ExportedModesTest, ANumberOfATensorStaysInItsLayer) {
  for (const auto& [crossing, layers] :
       {std::pair<int64_t, std::size_t>{0, 1}, {1, 2}, {2, 4}, {4, 4}}) {
    ExportedModel model =
        load_exported(testing::example_file("counted.pt2"),
                      ExportedOptions().max_crossing(crossing));
    EXPECT_EQ(model.layers->size(), layers) << crossing;
    EXPECT_EQ(model.uncut_reason,
              crossing > 0
                  ? ""
                  : "1 or more tensors cross at each place to cut, but "
                    "max_crossing is 0");
    expect_pythons_step(model, "counted");
  }
}

TEST_F(ExportedModesTest, AnAssertionOnANumberNamesItsNode) {
  ExportedModel model = load_exported(testing::example_file("counted.pt2"));
  const StateDict dict = model.state_dict();
  const at::NoGradGuard no_grad;
  at::Tensor input = at::ones({8, 4});
  input[0].fill_(-1);  // 28 positive numbers
  const at::Tensor hidden =
      at::linear(input, dict["first.weight"], dict["first.bias"]);
  EXPECT_TRUE(at::equal(
      testing::call(model.layers, {input})[0],
      at::linear(hidden * 29, dict["second.weight"], dict["second.bias"])));
  // 32 positive numbers, and the model allows 30. eval() checks them as well.
  for (const bool training : {true, false}) {
    model.layers->train(training);
    const std::string error = testing::error_of([&] {
      (void)testing::call(model.layers, {at::ones({8, 4})});
    });
    EXPECT_TRUE(contains(error, "Runtime assertion failed for expression"))
        << error;
    EXPECT_TRUE(contains(error, "<= 30")) << error;
    EXPECT_TRUE(contains(error,
                         "in node '_assert_scalar_default' "
                         "(torch.ops.aten._assert_scalar.default)"))
        << error;
  }
}

TEST_F(ExportedModesTest, NoiseWithoutAFlagRefusesEvalAndTrainsAsBefore) {
  const testing::Example example = testing::read_example("noisy");
  ExportedModel model = load_exported(example.path);
  model.layers->eval();
  const std::string error = testing::value_error_of(
      [&] { (void)testing::call(model.layers, example.inputs); });
  EXPECT_EQ(error.rfind("the exported program cannot be switched to eval(): "
                        "this node is random and has no training flag; export "
                        "the model in eval mode as a second program",
                        0),
            0u)
      << error;
  EXPECT_TRUE(contains(error,
                       "in node 'rand_like' (torch.ops.aten.rand_like.default)"
                       ", File \"make.py\", line"))
      << error;
  const std::vector<std::string>& known = model.eval_problems;
  ASSERT_EQ(known.size(), 1u);
  EXPECT_EQ(known[0].rfind("node 'rand_like' "
                           "(torch.ops.aten.rand_like.default), File "
                           "\"make.py\", line",
                           0),
            0u)
      << known[0];
  EXPECT_TRUE(known[0].ends_with(" is random and has no training flag"));
  model.layers->train();
  expect_pythons_step(model, "noisy");
}

TEST_F(ExportedModesTest, DropoutInABranchFollowsTheMode) {
  const testing::Example example = testing::read_example("dropped");
  ExportedModel model = load_exported(example.path);
  const auto output_is = [&](const std::vector<at::Tensor>& expected) {
    return testing::difference(
        {testing::call(model.layers, example.inputs), StateDict(), StateDict()},
        {expected, StateDict(), StateDict()}, example.tolerance());
  };
  model.layers->eval();
  EXPECT_EQ(output_is(example.evaluated), "");
  model.layers->train();
  torch::manual_seed(7);
  EXPECT_EQ(output_is(example.outputs), "");
  // Python draws another mask for the backward, so that its gradients are not
  // those of its output. Here they are.
  const testing::ExportedStep found = testing::training_step(model, example);
  const StateDict dict = model.state_dict();
  torch::manual_seed(7);
  const at::Tensor hidden =
      at::linear(example.inputs[0], dict["first.weight"], dict["first.bias"]);
  const at::Tensor dropped = at::dropout(hidden, 0.5, true);
  const at::Tensor grad = at::mm(example.weights[0], dict["second.weight"]) *
                          dropped.exp() * dropped / hidden;
  EXPECT_TRUE(at::allclose(found.grads["first.bias"], grad.sum(0), 1e-4, 1e-5));
}

TEST_F(ExportedModesTest, ABranchThatABufferChoosesCannotBeSwitchedToEval) {
  const testing::Example example = testing::read_example("alternating");
  ExportedModel model = load_exported(example.path);
  expect_pythons_step(model, "alternating");
  model.layers->eval();
  const std::string error = testing::value_error_of(
      [&] { (void)testing::call(model.layers, example.inputs); });
  EXPECT_TRUE(contains(error, "changes a buffer on which the output depends"))
      << error;
}

TEST_F(ExportedModesTest, AnErrorInABranchNamesBothNodes) {
  const testing::Example example = testing::read_example("alternating");
  ExportedModel model = load_exported(example.path);
  for (const auto& each : model.layers->named_parameters()) {
    if (!each.key().ends_with("a.weight")) continue;
    at::Tensor weight = each.value();
    weight.set_data(at::zeros({2, 8}));
  }
  const std::string error = testing::error_of(
      [&] { (void)testing::call(model.layers, example.inputs); });
  const std::size_t inner = error.find(
      "in node 'linear_1' "
      "(torch.ops.aten.linear.default)");
  const std::size_t outer =
      error.find("in node 'cond' (torch.ops.higher_order.cond)");
  EXPECT_NE(inner, std::string::npos) << error;
  EXPECT_NE(outer, std::string::npos) << error;
  EXPECT_LT(inner, outer) << error;
}

TEST_F(ExportedModesTest, AProgramExportedInEvalModeStaysInIt) {
  const testing::Example example = testing::read_example("quiet");
  ExportedModel model = load_exported(example.path);
  EXPECT_TRUE(model.eval_problems.empty());
  for (const bool training : {true, false}) {
    model.layers->train(training);
    const at::Tensor output = testing::call(model.layers, example.inputs)[0];
    // Without dropout and noise.
    const StateDict dict = model.state_dict();
    const at::Tensor hidden =
        at::linear(example.inputs[0], dict["first.weight"], dict["first.bias"]);
    EXPECT_TRUE(at::equal(
        output, at::linear(hidden, dict["second.weight"], dict["second.bias"])))
        << training;
  }
  expect_pythons_step(model, "quiet");
}

TEST_F(ExportedModesTest, AnEvalProgramTakesTheWeightsOfTheTrainedOne) {
  ExportedModel trained = load_exported(testing::example_file("noisy.pt2"));
  ExportedModel quiet = load_exported(testing::example_file("quiet.pt2"));
  const at::NoGradGuard no_grad;
  for (const auto& each : trained.state_dict()) each.value().add_(1);
  quiet.load_state_dict(trained.state_dict());
  testing::expect_equal(quiet.state_dict(), trained.state_dict());
}

}  // namespace
}  // namespace gpipe
