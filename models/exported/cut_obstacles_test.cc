#include "models/exported/cut_obstacles.h"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "models/exported/testing/draft.h"

namespace gpipe::exported {
namespace {

using testing::Draft;
using Reasons = std::vector<int>;

Reasons obstacles(const Program& program) {
  const Lives lives(program);
  return count_obstacles(find_obstacles(program, lives), lives);
}

TEST(CutObstaclesTest, AChainHasNone) {
  Draft draft;
  const ValueId a = draft.node({draft.input()});
  EXPECT_EQ(obstacles(draft.finish(draft.node({a}))), Reasons({0, 0}));
}

TEST(CutObstaclesTest, EachNumberThatCrossesCounts) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId first = draft.node({input});
  const ValueId second = draft.node({input});
  const ValueId a = draft.node({input, first});
  const ValueId b = draft.node({a, second});
  for (const ValueId each : {first, second}) {
    draft.program.values[each].is_tensor = false;
  }
  EXPECT_EQ(obstacles(draft.finish(b)), Reasons({0, 1, 2, 1}));
}

TEST(CutObstaclesTest, ATensorCountsUntilItsLastChange) {
  Draft draft;
  const ValueId a = draft.node({draft.input()});
  const ValueId b = draft.node({a});
  const ValueId changed = draft.node({a, b}, {a});
  draft.program.values[changed].memory = a;
  const ValueId d = draft.node({changed});
  // Only the memory of `a` changes at node 2; `b` has its own.
  EXPECT_EQ(obstacles(draft.finish(draft.node({d, a}))),
            Reasons({0, 1, 1, 0, 0}));
}

TEST(CutObstaclesTest, OnlyASliceWithAGradientCounts) {
  const auto with = [](bool requires_grad, bool no_grad,
                       std::optional<c10::ScalarType> dtype) {
    Draft draft;
    const ValueId weight = draft.add(Origin::kParameter);
    draft.program.weights[0].requires_grad = requires_grad;
    const ValueId slice = draft.node({draft.input(), weight});
    draft.program.values[slice].dense = false;
    draft.program.values[slice].dtype = dtype;
    draft.program.regions[0].no_grad = no_grad;
    return obstacles(draft.finish(draft.node({slice})));
  };
  EXPECT_EQ(with(true, false, std::nullopt), Reasons({0, 1}));
  EXPECT_EQ(with(true, false, c10::ScalarType::Float), Reasons({0, 1}));
  EXPECT_EQ(with(true, false, c10::ScalarType::ComplexFloat), Reasons({0, 1}));
  EXPECT_EQ(with(true, false, c10::ScalarType::Long), Reasons({0, 0}));
  EXPECT_EQ(with(false, false, std::nullopt), Reasons({0, 0}));
  EXPECT_EQ(with(true, true, std::nullopt), Reasons({0, 0}));
}

TEST(CutObstaclesTest, AChangingBufferCountsFromItsFirstUseToItsLast) {
  for (const bool changes : {false, true}) {
    Draft draft;
    const ValueId buffer = draft.add(Origin::kBuffer);
    ValueId x = draft.node({draft.input()});
    x = draft.node({x, buffer});
    x = draft.node({x});
    x = changes ? draft.node({x, buffer}, {buffer}) : draft.node({x, buffer});
    x = draft.node({x});
    EXPECT_EQ(obstacles(draft.finish(x)),
              changes ? Reasons({0, 0, 1, 1, 0}) : Reasons({0, 0, 0, 0, 0}));
  }
}

TEST(CutObstaclesTest, TheStatisticsOfANormStayTogether) {
  for (const bool same_module : {true, false}) {
    Draft draft;
    const ValueId batches = draft.add(Origin::kBuffer);
    const ValueId mean = draft.add(Origin::kBuffer);
    const ValueId var = draft.add(Origin::kBuffer);
    draft.program.weights[0].name =
        same_module ? "norm.num_batches_tracked" : "other.num_batches_tracked";
    draft.program.weights[1].name = "norm.running_mean";
    draft.program.weights[2].name = "norm.running_var";
    const ValueId count = draft.node({batches}, {batches});
    draft.program.values[count].memory = batches;
    ValueId x = draft.node({draft.input()});
    x = draft.node({x, mean, var}, {mean, var});
    draft.program.nodes.back().running_mean = mean;
    draft.program.nodes.back().running_var = var;
    const ValueId output = draft.node({x});
    EXPECT_EQ(obstacles(draft.finish(output)),
              same_module ? Reasons({0, 1, 1, 0}) : Reasons({0, 0, 0, 0}));
  }
}

std::vector<std::string> texts(const Program& program) {
  std::vector<std::string> result;
  for (const Obstacle& each : find_obstacles(program, Lives(program))) {
    result.push_back(text_of(program, each));
  }
  return result;
}

TEST(CutObstaclesTest, TheTextNamesTheValueAndTheNodesAtBothEnds) {
  Draft draft;
  const ValueId buffer = draft.add(Origin::kBuffer);
  draft.program.weights[0].name = "net.seen";
  const ValueId weight = draft.add(Origin::kParameter);
  draft.program.weights[1].requires_grad = true;
  const ValueId input = draft.input();
  const ValueId number = draft.node({input});
  const ValueId slice = draft.node({input, weight});
  const ValueId a = draft.node({slice, buffer}, {buffer});
  const ValueId changed = draft.node({a, number, buffer}, {a});
  draft.program.values[number].is_tensor = false;
  draft.program.values[slice].dense = false;
  draft.program.values[changed].memory = a;
  for (auto& each : draft.program.nodes) each.name = each.target + "'s name";
  draft.program.nodes[1].module = "net.qkv";
  EXPECT_EQ(
      texts(draft.finish(changed)),
      (std::vector<std::string>{
          "a number that is computed from tensors cannot cross a cut: 'v3', "
          "from node 'node 0's name' (node 0) to node 'node 3's name' (node 3)",
          "a slice of a larger tensor cannot cross a cut if it has a gradient: "
          "'v4', from node 'node 1's name' (node 1) of module 'net.qkv' to "
          "node 'node 2's name' (node 2)",
          "a tensor cannot cross a cut before it is changed in place: 'v5', "
          "from node 'node 2's name' (node 2) to node 'node 3's name' (node 3)",
          "all uses of a buffer that changes must be on the same side of a "
          "cut: 'net.seen', from node 'node 2's name' (node 2) to node 'node "
          "3's name' (node 3)"}));
}

}  // namespace
}  // namespace gpipe::exported
