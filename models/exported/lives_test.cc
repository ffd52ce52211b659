#include "models/exported/lives.h"

#include <gtest/gtest.h>

#include <utility>

#include "models/exported/testing/draft.h"

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

}  // namespace
}  // namespace gpipe::exported
