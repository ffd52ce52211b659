#include "models/exported/program_reader.h"

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "models/exported/archive.h"
#include "models/testing/examples.h"
#include "models/testing/files.h"

namespace gpipe::exported {

namespace {

constexpr char kOwn[] =
    "File \"model.py\", line 12, in forward\n    return self.fc(x)";
constexpr char kInside[] =
    "File \"site-packages/torch/nn/modules/linear.py\", line 134, in forward\n"
    "    return F.linear(input, self.weight, self.bias)";

TEST(SourceLineTest, FramesInsidePyTorchAreLeftOut) {
  const std::string expected =
      "File \"model.py\", line 12, in forward: return self.fc(x)";
  EXPECT_EQ(source_line(kOwn), expected);
  EXPECT_EQ(source_line(std::string(kOwn) + "\n  " + kInside), expected);
  // torch.cond and other control flow run in generated code.
  EXPECT_EQ(source_line(std::string(kOwn) +
                        "\n  File \"<eval_with_key>.5\", line 9, in forward\n "
                        "   cond = torch.ops.higher_order.cond(l_args_0_)"),
            expected);
  EXPECT_EQ(source_line(kInside),
            "File \"site-packages/torch/nn/modules/linear.py\", line 134, in "
            "forward: return F.linear(input, self.weight, self.bias)");
  EXPECT_EQ(source_line(""), "");
  EXPECT_EQ(source_line("File \""), "File \"");
  EXPECT_EQ(source_line("File \"" + std::string(300, 'x')).size(), 203u);
}

TEST(SourceLineTest, TheInnermostModuleHasItsPath) {
  EXPECT_EQ(module_path("L__self__,,Net;L__self___fc,blocks.0.fc,nn.Linear"),
            "blocks.0.fc");
  EXPECT_EQ(module_path("a,,Net;b,fc@1,nn.Linear"), "fc");
  EXPECT_EQ(module_path("a,,Net"), "");
  EXPECT_EQ(module_path(""), "");
  EXPECT_EQ(module_path("a"), "");
}

// Each of two lists of tensors that broadcast_tensors takes and returns.
TEST(ProgramReaderTest, ResultsShareMemoryThatNoSchemaDeclares) {
  Archive archive(testing::example_file("aliased.pt2"));
  const Program program = read_program(archive, {});
  const auto owner = [&](const std::string& name) {
    for (const Value& each : program.values) {
      if (each.name == name) return program.values[each.memory].name;
    }
    return std::string();
  };
  EXPECT_EQ(owner("dropout"), "linear");
  EXPECT_EQ(owner("relu_"), "linear");
  EXPECT_EQ(owner("getitem_1"), "b_before");
  EXPECT_EQ(owner("type_as"), "b_mean");
  EXPECT_EQ(owner("tanh"), "tanh");
}

const std::string kOperator = "torch.ops.higher_order.";

// Returns the JSON of a call with `before` in front of the graph and one tensor
// after it.
Json call_with(const std::string& before) {
  return internal::parse_json(
      R"({"inputs": [)" + before +
          R"({"arg": {"as_graph": {"name": "g", "graph": {"nodes": [1]}}}},
             {"arg": {"as_tensor": {"name": "x"}}}]})",
      "");
}

const std::string kNoGrad = R"({"arg": {"as_bool": false}}, )";

std::string autocast(const std::string& dtype, const std::string& cache) {
  return R"({"arg": {"as_string": "cpu"}}, {"arg": )" + dtype +
         R"(}, {"arg": {"as_bool": true}}, {"arg": )" + cache + "}, ";
}

TEST(RegionReaderTest, OnlyHigherOrderOperatorsCallGraphs) {
  EXPECT_TRUE(is_higher_order("torch.ops.higher_order.cond"));
  EXPECT_FALSE(is_higher_order("torch.ops.aten.add.Tensor"));
}

TEST(RegionReaderTest, NoGradTurnsGradientsOffAndStaysOff) {
  const std::string target = kOperator + "wrap_with_set_grad_enabled";
  const Json off = call_with(kNoGrad);
  const auto call = read_region(off, target, Region());
  ASSERT_TRUE(call);
  EXPECT_TRUE(call->region.no_grad);
  EXPECT_TRUE(call->region.autocasts.empty());
  EXPECT_EQ(&call->inputs, &off["inputs"]);
  EXPECT_EQ(&call->graph, &off["inputs"][1]["arg"]["as_graph"]["graph"]);
  EXPECT_EQ(call->first, 2u);

  const Json on = call_with(R"({"arg": {"as_bool": true}}, )");
  EXPECT_FALSE(read_region(on, target, Region())->region.no_grad);
  Region outer;
  outer.no_grad = true;
  EXPECT_TRUE(read_region(on, target, outer)->region.no_grad);
}

TEST(RegionReaderTest, AutocastHasADtypeAndACache) {
  const std::string target = kOperator + "wrap_with_autocast";
  Region outer;
  outer.no_grad = true;
  // 13 is bfloat16 in the schema.
  const Json given =
      call_with(autocast(R"({"as_scalar_type": 13})", R"({"as_bool": false})"));
  const auto call = read_region(given, target, outer);
  ASSERT_TRUE(call && call->region.autocasts.size() == 1);
  EXPECT_TRUE(call->region.no_grad);
  EXPECT_TRUE(call->region.autocasts[0].enabled);
  EXPECT_FALSE(call->region.autocasts[0].cache);
  EXPECT_EQ(call->region.autocasts[0].dtype, c10::ScalarType::BFloat16);
  EXPECT_EQ(call->first, 5u);

  const Json defaults =
      call_with(autocast(R"({"as_none": true})", R"({"as_none": true})"));
  const auto other = read_region(defaults, target, Region());
  ASSERT_TRUE(other && other->region.autocasts.size() == 1);
  EXPECT_TRUE(other->region.autocasts[0].cache);
  EXPECT_FALSE(other->region.autocasts[0].dtype);
}

TEST(RegionReaderTest, AutocastOfAnotherDeviceThanTheExportsIsForThatDevice) {
  for (const auto& [exported, expected] :
       std::map<std::string, std::optional<c10::DeviceType>>{
           {"cpu", std::nullopt}, {"cuda", c10::kCPU}}) {
    Json json =
        call_with(autocast(R"({"as_none": true})", R"({"as_none": true})"));
    json["inputs"][4]["arg"]["as_graph"]["graph"]["tensor_values"]["x"]
        ["device"]["type"] = exported;
    const auto call =
        read_region(json, kOperator + "wrap_with_autocast", Region());
    ASSERT_TRUE(call && call->region.autocasts.size() == 1);
    EXPECT_EQ(call->region.autocasts[0].device, expected) << exported;
  }
}

TEST(RegionReaderTest, ACheckpointHasTheStateAroundIt) {
  Region outer;
  outer.no_grad = true;
  outer.autocasts = {{std::nullopt, true, false, c10::ScalarType::Half}};
  const Json json = call_with("");
  const auto call =
      read_region(json, kOperator + "tag_activation_checkpoint", outer);
  ASSERT_TRUE(call && call->region.autocasts.size() == 1);
  EXPECT_TRUE(call->region.no_grad);
  EXPECT_EQ(call->region.autocasts[0].dtype, c10::ScalarType::Half);
  EXPECT_EQ(call->first, 1u);
}

TEST(RegionReaderTest, ControlFlowIsNoRegion) {
  for (const char* each : {"cond", "while_loop", "wrap", ""}) {
    EXPECT_FALSE(read_region(call_with(kNoGrad), kOperator + each, Region()))
        << each;
  }
}

TEST(RegionReaderTest, ControlFlowIsFoundByItsTarget) {
  EXPECT_EQ(find_control(kOperator + "cond"), Control::kCond);
  EXPECT_EQ(find_control(kOperator + "while_loop"), Control::kWhile);
  EXPECT_EQ(find_control(kOperator + "scan"), Control::kScan);
  EXPECT_EQ(find_control(kOperator + "map_impl"), Control::kMap);
  for (const char* each : {"associative_scan", "wrap_with_autocast", ""}) {
    EXPECT_FALSE(find_control(kOperator + each)) << each;
  }
}

TEST(RegionReaderTest, ACallWithoutAGraphIsDamaged) {
  const Json json =
      internal::parse_json(R"({"inputs": [{"arg": {"as_bool": false}}]})", "");
  EXPECT_EQ(testing::value_error_of([&] {
              read_region(json, kOperator + "wrap_with_set_grad_enabled",
                          Region());
            }),
            "has only 1 arguments; the file is damaged");
}

}  // namespace

}  // namespace gpipe::exported
