#include "models/exported/cuts.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "models/exported/testing/draft.h"

namespace gpipe::exported {
namespace {

using testing::Draft;
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
  EXPECT_EQ(uncut_reason(program, lives, 4), "");
  EXPECT_EQ(uncut_reason(program, lives, 0),
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
  EXPECT_EQ(uncut_reason(uncut, Lives(uncut), 4),
            "a number that is computed from tensors cannot cross a cut: 'v1', "
            "from node '' (node 0) to node '' (node 2)");
}

TEST(CutsTest, OneNodeHasNoPlaceToCut) {
  Draft draft;
  const Program& program = draft.finish(draft.node({draft.input()}));
  EXPECT_EQ(uncut_reason(program, Lives(program), 4),
            "there are not two nodes that compute");
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
