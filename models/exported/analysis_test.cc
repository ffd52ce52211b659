#include "models/exported/analysis.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/exported/archive.h"
#include "models/exported/operators.h"
#include "models/exported/program_reader.h"
#include "models/testing/draft.h"
#include "models/testing/examples.h"

namespace gpipe::exported {
namespace {

using testing::Draft;

// Stochastic depth of a tensor `x`, the first node's result: `x * noise`.
class DepthDraft : public Draft {
 public:
  DepthDraft(double drawn, double divided) {
    x = with_op("torch.ops.aten.relu.default", {input()});
    noise = with_op("torch.ops.aten.empty.memory_format", {});
    program.values[noise].sizes = {rows};
    const ValueId draw =
        with_op("torch.ops.aten.bernoulli_.float", {noise}, drawn);
    program.nodes.back().random = true;
    const ValueId scale =
        with_op("torch.ops.aten.div_.Tensor", {draw}, divided);
    for (const ValueId each : {draw, scale}) {
      program.values[each].memory = noise;
      program.nodes[each == draw ? 2 : 3].writes = {noise};
    }
    product = with_op("torch.ops.aten.mul.Tensor", {x, scale});
  }

  // Adds a node of an operator whose arguments are `reads` and a number.
  ValueId with_op(const std::string& target, const std::vector<ValueId>& reads,
                  std::optional<double> number = {}) {
    const ValueId result = node(reads);
    Node& added = program.nodes.back();
    added.op = find_operator(target);
    program.values[result].dtype = c10::ScalarType::Float;
    for (const ValueId each : reads) {
      Argument argument;
      argument.kind = Argument::Kind::kValue;
      argument.elements = {{each, 0}};
      added.arguments.push_back(argument);
    }
    if (number) {
      added.arguments.emplace_back();
      added.arguments.back().constant = *number;
    }
    return result;
  }

  ValueId x, noise, product;
};

constexpr int kProduct = 4;  // the node

TEST(EvalModeTest, AProductWithNoisePassesItsTensor) {
  DepthDraft draft(0.75, 0.75);
  const Program& program = draft.finish(draft.node({draft.product}));
  EXPECT_EQ(program.nodes[kProduct].passed, draft.x);
  std::vector<InEval> found;
  for (const Node& each : program.nodes) {
    found.push_back(in_eval(program, each));
  }
  using enum InEval;
  EXPECT_EQ(found,
            (std::vector<InEval>{kRun, kSkip, kSkip, kSkip, kPass, kRun}));
  EXPECT_EQ(eval_problems(program), std::vector<std::string>());
}

TEST(EvalModeTest, NoiseOfAnotherMeanIsRefused) {
  DepthDraft draft(0.75, 0.5);
  draft.program.nodes[2].name = "draw";
  draft.program.nodes[2].module = "blocks.1";
  const Program& program = draft.finish(draft.product);
  EXPECT_EQ(program.nodes[kProduct].passed, kNoValue);
  EXPECT_EQ(eval_problems(program),
            std::vector<std::string>{
                "node 'draw' (node 2) of module 'blocks.1' is random and has "
                "no training flag"});
}

TEST(EvalModeTest, NoiseThatIsReadTwiceIsRefused) {
  DepthDraft draft(0.75, 0.75);
  const Program& program =
      draft.finish(draft.node({draft.product, draft.noise}));
  EXPECT_EQ(program.nodes[kProduct].passed, kNoValue);
  EXPECT_EQ(eval_problems(program).size(), 1u);
}

TEST(EvalModeTest, NoiseForEachElementIsRefused) {
  DepthDraft draft(0.75, 0.75);
  const Extent width{Extent::kNone, 8};
  for (Value& each : draft.program.values) each.sizes = {draft.rows, width};
  const Program& program = draft.finish(draft.product);
  EXPECT_EQ(program.nodes[kProduct].passed, kNoValue);
  EXPECT_EQ(eval_problems(program).size(), 1u);
}

// In eval() the product is the tensor, so that both would change.
TEST(EvalModeTest, AChangeThatIsSeenThroughTheTensorIsRefused) {
  for (const bool is_read_later : {false, true}) {
    DepthDraft draft(0.75, 0.75);
    const ValueId changed = draft.node({draft.product}, {draft.product});
    draft.program.values[changed].memory = draft.product;
    const ValueId last =
        is_read_later ? draft.node({changed, draft.x}) : draft.node({changed});
    const Program& program = draft.finish(last);
    EXPECT_EQ(program.nodes[kProduct].passed,
              is_read_later ? kNoValue : draft.x);
    EXPECT_EQ(eval_problems(program).size(), is_read_later ? 1u : 0u);
  }
}

TEST(EvalModeTest, ThreeLibrariesOfPythonAreRecognized) {
  Archive archive(testing::example_file("deep.pt2"));
  Program program = read_program(archive, {});
  analyze(program, /*keep_random=*/true);
  std::vector<std::string> passing;
  for (const Node& node : program.nodes) {
    if (in_eval(program, node) != InEval::kPass) continue;
    passing.push_back(node.name + " <- " + program.values[node.passed].name);
  }
  EXPECT_EQ(passing,
            (std::vector<std::string>{"mul <- gelu", "mul_1 <- batch_norm",
                                      "div <- linear_2", "mul_2 <- div",
                                      "div_1 <- add_2", "mul_3 <- div_1"}));
  EXPECT_EQ(eval_problems(program), std::vector<std::string>());
}

}  // namespace
}  // namespace gpipe::exported
