#include "gpipe/schedule/needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> texts(const Action& action) {
  std::vector<std::string> texts;
  for (const Action& need : needs(action)) texts.push_back(to_string(need));
  return texts;
}

TEST(NeedsTest, AreOfTheNeighboursAndItsOwn) {
  EXPECT_THAT(texts({3, ActionKind::kForward, 5}), ElementsAre("2F5"));
  EXPECT_THAT(texts({3, ActionKind::kRecompute, 5}), ElementsAre("3F5"));
  EXPECT_THAT(texts({3, ActionKind::kBackward, 5}),
              ElementsAre("3F5", "3R5", "3L5", "4B5", "4I5"));
  EXPECT_THAT(texts({3, ActionKind::kBackwardInput, 5}),
              ElementsAre("3F5", "3R5", "3L5", "4B5", "4I5"));
  EXPECT_THAT(texts({3, ActionKind::kBackwardWeight, 5}), ElementsAre("3I5"));
  EXPECT_THAT(texts({3, ActionKind::kOffload, 5}), ElementsAre("3F5", "3R5"));
  EXPECT_THAT(texts({3, ActionKind::kReload, 5}), ElementsAre("3O5"));
}

// validate_fuzz found an overflow here, for a schedule that is refused later.
TEST(NeedsTest, HaveNoNeighboursBeyondTheNumbers) {
  constexpr int kMost = std::numeric_limits<int>::max();
  constexpr int kLeast = std::numeric_limits<int>::min();
  const std::string most = std::to_string(kMost);
  EXPECT_THAT(texts({kMost, ActionKind::kBackward, 0}),
              ElementsAre(most + "F0", most + "R0", most + "L0"));
  EXPECT_THAT(texts({kLeast, ActionKind::kForward, 0}), IsEmpty());
}

}  // namespace
}  // namespace gpipe::internal
