#include "gpipe/schedule/generators/named.h"

#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/generators/controllable_memory.h"
#include "gpipe/schedule/generators/dual_pipe_v.h"
#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/generators/forward_only.h"
#include "gpipe/schedule/generators/interleaved.h"
#include "gpipe/schedule/generators/looped_bfs.h"
#include "gpipe/schedule/generators/one_forward_one_backward.h"
#include "gpipe/schedule/generators/zero_bubble_h.h"
#include "gpipe/schedule/generators/zero_bubble_interleaved.h"
#include "gpipe/schedule/generators/zero_bubble_v.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(NamedSchedule, IsWhatTheFunctionOfThatNameReturns) {
  const auto of = [](const char* name, int stages_per_rank) {
    return named_schedule(name, 3, 7, stages_per_rank).ranks;
  };
  EXPECT_EQ(of("fill-drain", 1), fill_drain(3, 7).ranks);
  EXPECT_EQ(of("1f1b", 1), one_forward_one_backward(3, 7).ranks);
  EXPECT_EQ(of("eager-1f1b", 1), eager_one_forward_one_backward(3, 7).ranks);
  EXPECT_EQ(of("interleaved-1f1b", 4), interleaved(3, 7, 4).ranks);
  EXPECT_EQ(of("looped-bfs", 4), looped_bfs(3, 7, 4).ranks);
  EXPECT_EQ(of("zb-h1", 1), zero_bubble_h1(3, 7).ranks);
  EXPECT_EQ(of("zb-h2", 1), zero_bubble_h2(3, 7).ranks);
  EXPECT_EQ(of("zb-interleaved", 4), zero_bubble_interleaved(3, 7, 4).ranks);
  EXPECT_EQ(of("zbv", 2), zero_bubble_v(3, 7).ranks);
  EXPECT_EQ(of("v-half", 2), v_half(3, 7).ranks);
  EXPECT_EQ(of("v-min", 2), v_min(3, 7).ranks);
  EXPECT_EQ(of("dualpipe-v", 2), dual_pipe_v(3, 7).ranks);
  EXPECT_EQ(of("forward-only", 1), forward_only(3, 7).ranks);
}

TEST(NamedSchedule, ListsAllNames) {
  const std::vector<std::string> names = schedule_names();
  EXPECT_THAT(names, IsSupersetOf({"fill-drain", "1f1b", "interleaved-1f1b",
                                   "zbv", "forward-only"}));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(),
            names.size());
  const auto lists_all = ThrowsMessage<std::invalid_argument>(
      AllOf(HasSubstr("\"gpipe\""),
            EndsWith("there are " + absl::StrJoin(names, ", "))));
  EXPECT_THAT([] { named_schedule("gpipe", 2, 2, 1); }, lists_all);
  EXPECT_THAT([] { fixed_stages_per_rank("gpipe"); }, lists_all);
}

TEST(NamedSchedule, IsValidUnderEachName) {
  for (const std::string& name : schedule_names()) {
    SCOPED_TRACE(name);
    const int stages_per_rank = fixed_stages_per_rank(name).value_or(2);
    validate(named_schedule(name, 2, 4, stages_per_rank));
  }
}

TEST(NamedSchedule, SaysHowManyStagesPerRankItTakes) {
  EXPECT_EQ(fixed_stages_per_rank("1f1b"), 1);
  EXPECT_EQ(fixed_stages_per_rank("zbv"), 2);
  EXPECT_EQ(fixed_stages_per_rank("interleaved-1f1b"), std::nullopt);
  EXPECT_THAT(
      [] { named_schedule("1f1b", 2, 2, 2); },
      ThrowsMessage<std::invalid_argument>(
          AllOf(HasSubstr("1f1b has 1 stage per rank, not 2"),
                HasSubstr("interleaved-1f1b, looped-bfs, zb-interleaved, zbv"),
                Not(HasSubstr("fill-drain")))));
  EXPECT_THAT([] { named_schedule("zbv", 2, 2, 3); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("zbv has 2 stages per rank, not 3"),
                        Not(HasSubstr("v-half")))));
}

}  // namespace
}  // namespace gpipe
