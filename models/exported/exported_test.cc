#include "models/exported/exported.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <iostream>
#include <optional>
#include <set>

#include "models/testing/examples.h"
#include "models/testing/files.h"

namespace gpipe {
namespace {

using testing::call;
using testing::difference;
using testing::Example;
using testing::example_file;
using testing::example_names;
using testing::ExportedStep;
using ::testing::HasSubstr;
using testing::read_example;
using ::testing::ThrowsMessage;
using testing::training_step;
using testing::value_error_of;
using Tensors = std::vector<at::Tensor>;

class ExportedTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(ExportedTest, OneLayerHasThePythonsBits) {
  for (const std::string& name : example_names()) {
    const Example example = read_example(name);
    ExportedModel model = example.load(0);
    EXPECT_EQ(model.layers->size(), 1u);
    if (!example.made_here) {
      std::cout << name << ": made elsewhere, so that bits may differ\n";
    }
    EXPECT_EQ(difference(training_step(model, example), example.python(),
                         example.tolerance()),
              "")
        << name;
  }
}

// Other versions have other kernels, so that bits may differ from Python's.
TEST_F(ExportedTest, FilesOfOlderVersionsAreRead) {
  for (const std::string model : {"letters", "regions"}) {
    for (const std::string version : {"2_11", "2_12", "2_13", "2_14"}) {
      const std::string name = model + "_" + version;
      const Example example = read_example(name);
      ExportedModel one = example.load(0);
      const ExportedStep expected = training_step(one, example);
      EXPECT_EQ(difference(expected, example.python(), 1e-4), "") << name;
      ExportedModel many = load_exported(example.path);
      EXPECT_GT(many.layers->size(), 1u) << name;
      EXPECT_EQ(difference(training_step(many, example), expected), "") << name;
    }
  }
}

TEST_F(ExportedTest, ManyLayersHaveTheBitsOfOne) {
  for (const std::string& name : example_names()) {
    const Example example = read_example(name);
    ExportedModel one = example.load(0);
    const ExportedStep expected = training_step(one, example);
    for (const int64_t crossing : {1, 2, 4, 100}) {
      ExportedModel many = example.load(crossing);
      EXPECT_GT(many.layers->size(), 1u) << name;
      EXPECT_EQ(difference(training_step(many, example), expected), "")
          << name << " " << crossing;
    }
  }
}

// Returns the outputs in eval(), and their difference from Python's.
std::pair<Tensors, std::string> evaluate(ExportedModel& model,
                                         const Example& example) {
  model.layers->eval();
  const at::NoGradGuard no_grad;
  const Tensors outputs = call(model.layers, example.inputs);
  return {outputs, difference({outputs, StateDict(), StateDict()},
                              {example.evaluated, StateDict(), StateDict()},
                              example.tolerance())};
}

TEST_F(ExportedTest, EvalEqualsPythonsEval) {
  for (const std::string& name : example_names()) {
    const Example example = read_example(name);
    ExportedModel model = load_exported(example.path);
    const StateDict before = testing::copy_of(model.state_dict());
    EXPECT_EQ(evaluate(model, example).second, "") << name;
    testing::expect_equal(model.state_dict(), before);
  }
}

// A buffer is assigned after a view of it was used, and read by the next
// assignment. eval() assigns none of them.
TEST_F(ExportedTest, AssignmentsAndUndeclaredAliasesHavePythonsBits) {
  const Example example = read_example("aliased");
  for (const int64_t crossing : {0, 1, 100}) {
    ExportedModel model = example.load(crossing);
    EXPECT_EQ(model.layers->size() > 1, crossing > 1);
    for (int calls = 0; calls < 2; ++calls) {
      EXPECT_EQ(evaluate(model, example).second, "") << crossing;
    }
    model.layers->train();
    EXPECT_EQ(difference(training_step(model, example), example.python(),
                         example.tolerance()),
              "")
        << crossing;
  }
}

// In eval() dropout returns its input, here a constant that then changes.
TEST_F(ExportedTest, ConstantsAreTheSameInEachCall) {
  const Example example = read_example("ramps");
  for (const int64_t crossing : {0, 100}) {
    ExportedModel model = example.load(crossing);
    for (int calls = 0; calls < 3; ++calls) {
      const auto [outputs, found] = evaluate(model, example);
      EXPECT_EQ(found, "") << calls;
      EXPECT_TRUE(at::equal(outputs[1], at::arange(8, at::kFloat)));
      outputs[1].add_(1);
    }
    model.layers->train();
    EXPECT_EQ(difference(training_step(model, example), example.python(),
                         example.tolerance()),
              "");
  }
}

TEST_F(ExportedTest, WeightsWithoutElementsAreNotTied) {
  ExportedModel model = load_exported(testing::example_file("ramps.pt2"));
  EXPECT_EQ(model.layers->parameters().size(), 6u);
  const StateDict dict = model.state_dict();
  for (const std::string name : {"none", "nothing"}) {
    EXPECT_EQ(dict[name].sizes(), (std::vector<int64_t>{0, 4})) << name;
  }
}

TEST_F(ExportedTest, AnExpandedWeightHasMemoryForEachElement) {
  ExportedModel model = load_exported(testing::example_file("ramps.pt2"));
  const StateDict dict = model.state_dict();
  EXPECT_TRUE(at::equal(dict["halves"], at::full({4}, 0.5)));
  StateDict other = testing::copy_of(dict);
  other["halves"].copy_(at::arange(4));
  model.load_state_dict(other);
  EXPECT_TRUE(at::equal(dict["halves"], at::arange(4, at::kFloat)));
}

TEST_F(ExportedTest, StateDictHasPythonsNames) {
  const Example example = read_example("gpt");
  ExportedModel model = load_exported(example.path);
  const StateDict dict = model.state_dict();
  EXPECT_EQ(dict.size(), 41u);
  // Both names of the tied weight are one tensor, in one layer.
  EXPECT_EQ(dict["token.weight"].data_ptr(), dict["head.weight"].data_ptr());
  int64_t found = 0;
  for (const auto& each : model.layers->named_parameters()) {
    found += each.value().data_ptr() == dict["token.weight"].data_ptr();
  }
  EXPECT_EQ(found, 1);
  // Constants are not part of Python's state dict.
  ExportedModel regions = load_exported(example_file("regions.pt2"));
  EXPECT_TRUE(regions.state_dict().contains("average"));
  EXPECT_FALSE(regions.state_dict().contains("scale"));
}

TEST_F(ExportedTest, LoadStateDictBringsTheValuesBack) {
  const Example example = read_example("mlp");
  ExportedModel model = load_exported(example.path);
  StateDict saved = testing::copy_of(model.state_dict());
  const ExportedStep expected = training_step(model, example);
  model.load_state_dict(saved);
  model.layers->zero_grad();
  EXPECT_EQ(difference(training_step(model, example), expected), "");
  saved.erase("0.weight");
  saved.insert("0.wight", at::zeros({16, 10}));
  const std::string error =
      value_error_of([&] { model.load_state_dict(saved); });
  EXPECT_NE(error.find("'0.wight' (is it '0.weight'?)"), std::string::npos)
      << error;
}

// Returns what "tables" computes.
at::Tensor output_of_tables(const StateDict& dict, const at::Tensor& ids) {
  const at::Tensor rows =
      at::slice(dict["table"].cos(), 0, std::nullopt, ids.size(1));
  return at::linear(at::embedding(dict["embed.weight"], ids) + rows,
                    dict["head.weight"], dict["head.bias"]);
}

TEST_F(ExportedTest, ConstantsFollowTheirBuffersAndSizes) {
  const Example example = read_example("tables");
  ExportedModel model = load_exported(example.path);
  const StateDict dict = model.state_dict();
  const at::NoGradGuard no_grad;
  const at::Tensor& ids = example.inputs[0];
  const at::Tensor fewer = ids.narrow(1, 0, 4);
  // Each is computed twice: the second time, the constant is in the cache.
  const auto expect_closed_form = [&](const std::string& when) {
    for (const at::Tensor& each : {ids, fewer, ids, fewer}) {
      EXPECT_TRUE(at::equal(call(model.layers, {each})[0],
                            output_of_tables(dict, each)))
          << when << ", " << each.size(1) << " tokens";
    }
  };
  expect_closed_form("as exported");
  const at::Tensor before = call(model.layers, {ids})[0];
  dict["table"].mul_(2);
  expect_closed_form("after a change in place");
  model.load_state_dict(
      testing::copy_of(dict, [](const at::Tensor& each) { return each + 1; }));
  expect_closed_form("after load_state_dict()");
  EXPECT_FALSE(at::equal(call(model.layers, {ids})[0], before));
}

TEST_F(ExportedTest, ConstantsOfABufferThatIsTrainedHaveItsGradient) {
  const Example example = read_example("tables");
  ExportedModel model = load_exported(example.path);
  const StateDict dict = model.state_dict();
  const at::Tensor expected = dict["table"].clone().requires_grad_();
  StateDict copy = dict;
  copy["table"] = expected;
  (output_of_tables(copy, example.inputs[0]).sum() * 2).backward();
  const auto evaluate = [&] {
    const at::NoGradGuard no_grad;
    call(model.layers, example.inputs);
  };
  evaluate();
  at::Tensor table;
  for (const auto& each : model.layers->named_buffers()) {
    if (each.key().ends_with("table")) table = each.value();
  }
  table.requires_grad_();
  evaluate();
  for (int k = 0; k < 2; ++k) {
    call(model.layers, example.inputs)[0].sum().backward();
  }
  EXPECT_TRUE(at::equal(table.grad(), expected.grad()));
}

// Python's region has the device "cuda", and so leaves CPUs alone.
TEST_F(ExportedTest, AutocastOfOtherDevicesLeavesThatOfTheCaller) {
  const Example example = read_example("alone");
  ExportedModel model = load_exported(example.path);
  for (const bool enabled : {false, true}) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    const at::Tensor output = call(model.layers, example.inputs)[0];
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(output.scalar_type(), enabled ? at::kBFloat16 : at::kFloat);
  }
}

TEST_F(ExportedTest, ConstantsOfTwoReadsOfAFileFollowTheirOwnBuffers) {
  const Example example = read_example("tables");
  const ExportedFile file(example.path);
  std::vector<ExportedModel> models{file.read(0, file.size()),
                                    file.read(0, file.size())};
  const at::NoGradGuard no_grad;
  for (const bool changed : {false, true}) {
    for (const int64_t k : {0, 1}) {
      if (changed) {
        models[k].load_state_dict(testing::copy_of(
            models[k].state_dict(),
            [&](const at::Tensor& each) { return each + (k + 1); }));
      }
    }
    std::vector<at::Tensor> outputs;
    for (ExportedModel& each : models) {
      outputs.push_back(call(each.layers, example.inputs)[0]);
      EXPECT_TRUE(
          at::equal(outputs.back(),
                    output_of_tables(each.state_dict(), example.inputs[0])));
    }
    EXPECT_EQ(at::equal(outputs[0], outputs[1]), !changed);
  }
}

TEST_F(ExportedTest, APartOfTheLayersReadsItsOwnWeightsOnly) {
  const Example example = read_example("gpt");
  ExportedModel whole = load_exported(example.path);
  const auto size = static_cast<int64_t>(whole.layers->size());
  std::set<std::string> names;
  for (int64_t first = 0; first < size; first += 5) {
    const int64_t count = std::min<int64_t>(5, size - first);
    ExportedModel part = load_exported(example.path, first, count);
    EXPECT_EQ(static_cast<int64_t>(part.layers->size()), count);
    for (const auto& each : part.state_dict()) {
      names.insert(each.key());
      EXPECT_TRUE(at::equal(each.value(), whole.state_dict()[each.key()]));
    }
    EXPECT_LT(part.state_dict().size(), 41u);
  }
  EXPECT_EQ(names.size(), 41u);
  EXPECT_THROW(load_exported(example.path, size, 1), c10::IndexError);
}

TEST_F(ExportedTest, ChosenOutputsAreComputedAlone) {
  const Example example = read_example("masked");
  ExportedModel model =
      load_exported(example.path, ExportedOptions().outputs({1}));
  const auto output = model.layers->forward<at::Tensor>(example.inputs);
  ExportedModel all = load_exported(example.path);
  EXPECT_TRUE(at::equal(output, call(all.layers, example.inputs)[1]));
  EXPECT_EQ(
      value_error_of(
          [&] { load_exported(example.path, ExportedOptions().outputs({2})); }),
      "'models/exported/testdata/masked.pt2' ExportedOptions::outputs has the "
      "place 2, but the program has 2 outputs, counted from 0");
}

TEST_F(ExportedTest, TheSignatureHasInputsAndOutputsInOrder) {
  using Sizes = std::vector<std::optional<int64_t>>;
  const std::string path = example_file("masked.pt2");
  const ExportedModel model = load_exported(path);
  ASSERT_EQ(model.inputs.size(), 2u);
  EXPECT_EQ(model.inputs[0].name, "ids");
  EXPECT_EQ(model.inputs[0].dtype, at::kLong);
  EXPECT_EQ(model.inputs[0].sizes, (Sizes{std::nullopt, 9}));
  EXPECT_EQ(model.inputs[0].shape, "Long [s23, 9]");
  EXPECT_EQ(model.inputs[1].name, "valid");
  EXPECT_EQ(model.inputs[1].dtype, at::kBool);
  EXPECT_EQ(model.inputs[1].shape, "Bool [s23, 9]");
  ASSERT_EQ(model.outputs.size(), 2u);
  EXPECT_EQ(model.outputs[0].sizes, (Sizes{std::nullopt, 9, 23}));
  EXPECT_EQ(model.outputs[1].shape, "Float [s23, 3]");
  EXPECT_EQ(load_exported(path, 1, 1).inputs[1].name, "valid");

  const ExportedSignature second =
      exported_signature(path, ExportedOptions().outputs({1}));
  EXPECT_EQ(second.inputs.size(), 2u);
  ASSERT_EQ(second.outputs.size(), 1u);
  EXPECT_EQ(second.outputs[0].shape, "Float [s23, 3]");
  EXPECT_EQ(second.checksum, model.checksum);
  const ExportedSignature letters =
      exported_signature(example_file("letters.pt2"));
  EXPECT_EQ(letters.inputs[0].sizes, (Sizes{std::nullopt, std::nullopt}));
  EXPECT_NE(letters.checksum, model.checksum);
  EXPECT_NE(value_error_of([] {
              (void)exported_signature(example_file("mlp.safetensors"));
            }).find("mlp.safetensors"),
            std::string::npos);
}

TEST_F(ExportedTest, LayersAreNamedAfterPythonsModules) {
  ExportedModel model = load_exported(example_file("gpt.pt2"));
  std::set<std::string> names;
  for (const auto& each : model.layers->named_children()) {
    names.insert(each.key());
  }
  EXPECT_TRUE(names.count("token"));
  EXPECT_TRUE(names.count("blocks_0_qkv"));
  EXPECT_TRUE(names.count("blocks_2_down"));
  EXPECT_TRUE(names.count("head"));
}

TEST_F(ExportedTest, OtherSizesThanThoseOfTheExportAreRefused) {
  const Example example = read_example("mlp");
  ExportedModel model = load_exported(example.path);
  const auto error = [&](at::Tensor input) {
    return value_error_of(
        [&] { model.layers->forward<at::Tensor>(std::move(input)); });
  };
  EXPECT_EQ(error(at::zeros({8, 11})),
            "input 'input' of the program was exported with size 10 in "
            "dimension 1, but has 11; export with dynamic_shapes={1: "
            "torch.export.Dim(...)} for this input");
  EXPECT_EQ(error(at::zeros({10})),
            "input 'input' of the program was exported with 2 dimensions, but "
            "has 1");
  EXPECT_NE(error(at::zeros({5000, 10}))
                .find("has size 5000 in dimension 0, "
                      "but was exported for 0 to 4096"),
            std::string::npos);
  EXPECT_EQ(model.layers->forward<at::Tensor>(at::zeros({3, 10})).size(0), 3);
  const std::string unbounded = testing::new_folder() + "unbounded.pt2";
  testing::edit_program(example.path, unbounded,
                        R"("min_val": 1, "max_val": 4096)", R"("min_val": 4)");
  model = load_exported(unbounded);
  EXPECT_NE(error(at::zeros({3, 10}))
                .find("has size 3 in dimension 0, "
                      "but was exported for 4 or more; "),
            std::string::npos);
  ExportedModel masked = load_exported(example_file("masked.pt2"));
  EXPECT_NE(value_error_of([&] {
              masked.layers->forward<Tensors>(Tensors{
                  at::zeros({4, 9}, at::kLong), at::ones({3, 9}, at::kBool)});
            }).find("input 'valid' of the program has size 3 in dimension 0"),
            std::string::npos);
}

TEST_F(ExportedTest, AnErrorOfAnOperatorNamesTheNodeAndItsLine) {
  ExportedModel model = load_exported(example_file("gpt.pt2"));
  // A token that the embedding does not have.
  const at::Tensor token = at::full({2, 12}, 31, at::kLong);
  EXPECT_THAT([&] { model.layers->forward<at::Tensor>(token); },
              ThrowsMessage<c10::Error>(HasSubstr(
                  "node 'embedding' (torch.ops.aten.embedding.default) "
                  "of module 'token', File \"make.py\", line")));
}

TEST_F(ExportedTest, WeightsMayComeFromElsewhere) {
  const Example example = read_example("gpt");
  ExportedModel whole = load_exported(example.path);
  ExportedModel model =
      load_exported(example.path, ExportedOptions().weights(false));
  const StateDict expected = whole.state_dict();
  for (const auto& item : model.state_dict()) {
    EXPECT_TRUE(item.value().isnan().all().item<bool>()) << item.key();
    EXPECT_EQ(item.value().sizes(), expected[item.key()].sizes());
    EXPECT_EQ(item.value().strides(), expected[item.key()].strides());
  }
  model.load_state_dict(expected);
  EXPECT_EQ(
      difference(training_step(model, example), training_step(whole, example)),
      "");
  // Nothing has values in this file.
  ExportedModel weightless = load_exported(example_file("weightless.pt2"),
                                           ExportedOptions().weights(false));
  for (const auto& item : weightless.state_dict()) {
    EXPECT_TRUE(item.value().is_cpu()) << item.key();
    EXPECT_TRUE(item.value().isnan().all().item<bool>()) << item.key();
  }
}

}  // namespace
}  // namespace gpipe
