#include "models/exported/cuts.h"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/testing/draft.h"

namespace gpipe::exported {

namespace {

using testing::Draft;
using Ends = std::pair<int, int>;

Ends life_of(const Lives& lives, ValueId value) {
  return {lives[value].begin, lives[value].end};
}

TEST(LivesTest, AValueLivesFromItsNodeToItsLastReader) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId a = draft.node({input});
  const ValueId b = draft.node({a});
  const ValueId c = draft.node({a, b});
  const Lives lives(draft.finish(c));
  EXPECT_EQ(lives.nodes(), 3);
  EXPECT_EQ(life_of(lives, input), Ends(-1, 0));
  EXPECT_EQ(life_of(lives, a), Ends(0, 2));
  EXPECT_EQ(life_of(lives, b), Ends(1, 2));
  EXPECT_EQ(life_of(lives, c), Ends(2, 3));
  EXPECT_EQ(lives.last_read(draft.program.nodes[0]), 2);
}

TEST(LivesTest, AValueThatNoNodeReadsHasNoEnd) {
  Draft draft;
  const ValueId unread = draft.input();
  const Lives lives(draft.finish(draft.node({draft.input()})));
  EXPECT_EQ(life_of(lives, unread), Ends(-1, -1));
}

TEST(LivesTest, APureNodeReadsWhereItsResultIsRead) {
  Draft draft;
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId table = draft.node({buffer});
  const ValueId a = draft.node({draft.input()});
  const ValueId b = draft.node({a, table});
  const Program& program = draft.finish(b);
  ASSERT_TRUE(program.nodes[0].pure);
  const Lives lives(program);
  EXPECT_EQ(life_of(lives, buffer), Ends(-1, 2));
  EXPECT_EQ(life_of(lives, table), Ends(0, 2));
  EXPECT_FALSE(lives.is_passed(buffer));
  EXPECT_FALSE(lives.is_passed(table));
  EXPECT_TRUE(lives.is_passed(a));
  EXPECT_TRUE(lives.is_passed(program.inputs[0]));
}

TEST(LivesTest, AKnownSizeDoesNotKeepItsTensorAlive) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId rows = draft.size_of(input);
  const ValueId a = draft.node({input});
  const ValueId b = draft.node({a, rows});
  const Program& program = draft.finish(b);
  const Lives lives(program);
  EXPECT_TRUE(lives.is_known_size(program.nodes[0]));
  EXPECT_FALSE(lives.is_known_size(program.nodes[1]));
  EXPECT_EQ(life_of(lives, input), Ends(-1, 1));
  EXPECT_EQ(lives.last_read(program.nodes[0]), 2);
}

TEST(LivesTest, TheSizeOfAConstantBufferIsNoKnownSize) {
  Draft draft;
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId rows = draft.size_of(buffer);
  const Program& program = draft.finish(draft.node({draft.input(), rows}));
  const Lives lives(program);
  EXPECT_FALSE(lives.is_known_size(program.nodes[0]));
  EXPECT_EQ(life_of(lives, buffer), Ends(-1, 1));
}

// Returns whether a value is long if `across` nodes of `length` in all follow
// the input until its last reader, which is one of them.
bool is_long(int across, int length) {
  Draft draft;
  const ValueId input = draft.input();
  ValueId x = draft.node({input});
  for (int k = 1; k < length; ++k) {
    x = k == across ? draft.node({x, input}) : draft.node({x});
  }
  return Lives(draft.finish(x)).is_long(input);
}

TEST(LivesTest, ALongLifeIsMoreThan32NodesAndAQuarterOfAll) {
  EXPECT_FALSE(is_long(32, 100));
  EXPECT_TRUE(is_long(33, 100));
  EXPECT_TRUE(is_long(50, 199));
  EXPECT_FALSE(is_long(50, 200));
  EXPECT_TRUE(is_long(51, 200));
}

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

TEST(CutObstaclesTest, AChangingBufferThatIsReturnedCountsToTheEnd) {
  Draft draft;
  const ValueId buffer = draft.add(Origin::kBuffer);
  ValueId x = draft.node({draft.input()});
  x = draft.node({x, buffer}, {buffer});
  Program& program = draft.finish(draft.node({x}));
  program.outputs.push_back(buffer);
  EXPECT_EQ(obstacles(program), Reasons({0, 0, 1}));
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

using Values = std::vector<ValueId>;

std::vector<int> places_of(const std::vector<Cut>& cuts) {
  std::vector<int> places;
  for (const Cut& each : cuts) places.push_back(each.place);
  return places;
}

TEST(CutsTest, TheWalkKnowsWhatCrosses) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId a = draft.node({input});
  const ValueId b = draft.node({a});
  const ValueId c = draft.node({b, a});
  const Program& program = draft.finish(c);
  const Lives lives(program);
  CrossingWalk walk(program, lives);
  const std::set<ValueId> expected[] = {{input}, {a}, {a, b}};
  for (int k = 0; k < 3; ++k) {
    walk.enter(k);
    EXPECT_EQ(walk.crossing(), expected[k]) << k;
    EXPECT_EQ(walk.may_cut(), k > 0) << k;
  }
}

TEST(CutsTest, CutsHaveAtMostTheGivenNumberOfTensors) {
  Draft draft;
  const ValueId a = draft.node({draft.input()});
  const ValueId b = draft.node({a});
  const ValueId c = draft.node({a, b});
  const ValueId d = draft.node({c});
  const Program& program = draft.finish(d);
  const Lives lives(program);
  EXPECT_EQ(places_of(find_cuts(program, lives, 0)), std::vector<int>());
  EXPECT_EQ(places_of(find_cuts(program, lives, 1)), (std::vector<int>{1, 3}));
  const std::vector<Cut> cuts = find_cuts(program, lives, 2);
  EXPECT_EQ(places_of(cuts), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(cuts[0].crossing, Values({a}));
  EXPECT_EQ(cuts[1].crossing, Values({a, b}));
  EXPECT_EQ(cuts[2].crossing, Values({c}));
}

TEST(CutsTest, NoCutBeforeAPureNodeOrAfterOnlyPureOnes) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId first = draft.node({buffer});
  const ValueId a = draft.node({input, first});
  const ValueId second = draft.node({buffer});
  const ValueId b = draft.node({a, second});
  const Program& program = draft.finish(b);
  const Lives lives(program);
  // Before node 1 only a pure node has run. Node 2 is pure.
  EXPECT_EQ(places_of(find_cuts(program, lives, 4)), std::vector<int>{3});
}

TEST(CutsTest, ASizeThatNoTensorHasIsNoObstacle) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId rows = draft.size_of(input);
  const ValueId sum = draft.node({input});
  draft.program.values[sum].sizes = {};
  const ValueId a = draft.node({sum, rows});
  const ValueId b = draft.node({a});
  const Program& program = draft.finish(b);
  const Lives lives(program);
  // Only `sum` crosses before node 2, and has no rows.
  EXPECT_EQ(places_of(find_cuts(program, lives, 4)), (std::vector<int>{2, 3}));
}

TEST(CutsTest, TheReasonForNoCutIsTheLargestObstacle) {
  Draft draft;
  const ValueId short_number = draft.node({draft.input()});
  ValueId x = draft.node({draft.input(), short_number});
  const ValueId number = draft.node({draft.input()});
  for (int k = 0; k < 4; ++k) x = draft.node({x});
  const ValueId with_short = draft.node({x, number});
  for (const ValueId each : {short_number, number}) {
    draft.program.values[each].is_tensor = false;
  }
  const Program& program = draft.finish(with_short);
  const Lives lives(program);
  EXPECT_EQ(places_of(find_cuts(program, lives, 4)), std::vector<int>{2});
  EXPECT_EQ(uncut_reason(program, 4), "");
  EXPECT_EQ(uncut_reason(program, 0),
            "2 or more tensors cross at each place to cut, but max_crossing is "
            "0");

  Draft other;
  const ValueId early = other.node({other.input()});
  const ValueId late = other.node({early});
  ValueId y = other.node({other.input(), early});
  y = other.node({y, late});
  for (const ValueId each : {early, late}) {
    other.program.values[each].is_tensor = false;
  }
  const Program& uncut = other.finish(y);
  EXPECT_EQ(uncut_reason(uncut, 4),
            "a number that is computed from tensors cannot cross a cut: 'v1', "
            "from node '' (node 0) to node '' (node 2)");
}

TEST(CutsTest, OneNodeHasNoPlaceToCut) {
  Draft draft;
  const Program& program = draft.finish(draft.node({draft.input()}));
  EXPECT_EQ(uncut_reason(program, 4), "there are not two nodes that compute");
}

TEST(CutsTest, NoCutWhereNothingCrosses) {
  Draft draft;
  const ValueId weight = draft.add(Origin::kParameter);
  draft.program.weights[0].requires_grad = true;
  draft.node({draft.input()});
  draft.program.nodes.back().random = true;
  const ValueId a = draft.node({weight});
  const ValueId b = draft.node({a});
  const Program& program = draft.finish(b);
  ASSERT_EQ(program.nodes.size(), 3u);
  const Lives lives(program);
  EXPECT_EQ(places_of(find_cuts(program, lives, 4)), std::vector<int>{2});
}

TEST(CutsTest, AnAssignmentMovesToTheNextUseOfItsBuffer) {
  constexpr char kAssignment[] = "torch.ops.aten.copy_.default";
  Draft draft;
  const ValueId input = draft.input();
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId source = draft.node({input});
  draft.node({buffer, source}, {buffer});
  draft.program.nodes.back().target = kAssignment;
  const ValueId a = draft.node({input});
  const ValueId b = draft.node({a});
  const ValueId c = draft.node({b, buffer});
  const Program& program = draft.finish(c);
  // `source` is computed for the assignment only.
  std::vector<std::string> targets;
  for (const Node& each : program.nodes) targets.push_back(each.target);
  EXPECT_EQ(targets, (std::vector<std::string>{"node 2", "node 3", "node 0",
                                               kAssignment, "node 4"}));
  const Lives lives(program);
  // No cut between the assignment and the use.
  EXPECT_EQ(places_of(find_cuts(program, lives, 2)),
            (std::vector<int>{1, 2, 3}));
}

TEST(CutsTest, AnAssignmentStaysBeforeAChangeOfWhatItAssigns) {
  constexpr char kAssignment[] = "torch.ops.aten.copy_.default";
  Draft draft;
  const ValueId input = draft.input();
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId source = draft.node({input});
  draft.node({buffer, source}, {buffer});
  draft.program.nodes.back().target = kAssignment;
  const ValueId a = draft.node({input});
  const ValueId changed = draft.node({source, a}, {source});
  const ValueId c = draft.node({changed, buffer});
  const Program& program = draft.finish(c);
  std::vector<std::string> targets;
  for (const Node& each : program.nodes) targets.push_back(each.target);
  EXPECT_EQ(targets, (std::vector<std::string>{"node 2", "node 0", kAssignment,
                                               "node 3", "node 4"}));
}

}  // namespace

}  // namespace gpipe::exported
