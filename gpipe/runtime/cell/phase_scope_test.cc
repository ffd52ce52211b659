// Tests what a thread does for a pipeline, and which micro-batches are
// checkpointed.
#include "gpipe/runtime/cell/phase_scope.h"

#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <thread>

#include "gpipe/phase.h"
#include "gpipe/schedule/microbatches.h"

namespace gpipe {
namespace {

using internal::PhaseScope;

// Returns the answers on this thread, such as "checkpointing 3" or "none".
std::string answers() {
  std::string text;
  if (is_checkpointing()) text += "checkpointing ";
  if (is_recomputing()) text += "recomputing ";
  const std::optional<int64_t> microbatch = current_microbatch();
  return text + (microbatch ? std::to_string(*microbatch) : "none");
}

TEST(Phase, IsThatOfTheScopeAndOfNoneOutside) {
  EXPECT_EQ(answers(), "none");
  const struct {
    Phase phase;
    const char* expected;
  } cases[] = {{Phase::kForward, "4"},
               {Phase::kCheckpointing, "checkpointing 4"},
               {Phase::kRecomputing, "recomputing 4"},
               {Phase::kBackward, "4"}};
  for (const auto& each : cases) {
    const PhaseScope scope(each.phase, 4);
    EXPECT_EQ(answers(), each.expected);
  }
  EXPECT_EQ(answers(), "none");
}

TEST(Phase, OfAnInnerPipelineKnowsTheRecomputeOfTheOuterOne) {
  {
    const PhaseScope outer(Phase::kRecomputing, 1);
    {
      const PhaseScope inner(Phase::kForward, 5);
      EXPECT_EQ(answers(), "recomputing 5");
    }
    {
      // A recompute is no first forward, whatever the inner cell does.
      const PhaseScope inner(Phase::kCheckpointing, 6);
      EXPECT_EQ(answers(), "recomputing 6");
    }
    EXPECT_EQ(answers(), "recomputing 1");
  }
  const PhaseScope outer(Phase::kCheckpointing, 1);
  {
    const PhaseScope inner(Phase::kForward, 7);
    EXPECT_EQ(answers(), "checkpointing 7");
  }
  const PhaseScope inner(Phase::kRecomputing, 8);
  EXPECT_EQ(answers(), "recomputing 8");
}

TEST(Phase, ReachesOtherThreadsWithTheThreadLocalState) {
  const PhaseScope scope(Phase::kRecomputing, 2);
  const at::ThreadLocalState state;
  std::string without, with;
  std::thread([&] {
    without = answers();
    const at::ThreadLocalStateGuard guard(state);
    with = answers();
  }).join();
  EXPECT_EQ(without, "none");
  EXPECT_EQ(with, "recomputing 2");
}

TEST(Phase, HasAName) {
  EXPECT_STREQ(to_string(Phase::kForward), "forward");
  EXPECT_STREQ(to_string(Phase::kCheckpointing), "forward (checkpointed)");
  EXPECT_STREQ(to_string(Phase::kRecomputing), "recompute");
  EXPECT_STREQ(to_string(Phase::kBackward), "backward");
  EXPECT_STREQ(to_string(Phase::kScatter), "scatter");
  EXPECT_STREQ(to_string(Phase::kGather), "gather");
  EXPECT_STREQ(to_string(Phase::kGradients), "gradients");
}

TEST(Checkpoint, CountsTheFirstMicrobatches) {
  EXPECT_EQ(checkpointed_microbatches(Checkpoint::kAlways, 4), 4);
  EXPECT_EQ(checkpointed_microbatches(Checkpoint::kExceptLast, 4), 3);
  EXPECT_EQ(checkpointed_microbatches(Checkpoint::kExceptLast, 1), 0);
  EXPECT_EQ(checkpointed_microbatches(Checkpoint::kNever, 4), 0);
}

TEST(Checkpoint, HasTheNameOfTorchgpipe) {
  EXPECT_STREQ(to_string(Checkpoint::kAlways), "always");
  EXPECT_STREQ(to_string(Checkpoint::kExceptLast), "except_last");
  EXPECT_STREQ(to_string(Checkpoint::kNever), "never");
}

}  // namespace
}  // namespace gpipe
