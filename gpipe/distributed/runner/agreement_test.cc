#include "gpipe/distributed/runner/agreement.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "gpipe/distributed/world/bytes.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;

StartReport start_report() {
  StartReport report;
  report.refused = true;
  report.refusal = "no";
  report.schedule = 0xfedcba98;
  report.with_backward = true;
  report.training = true;
  report.has_loss = true;
  report.rows = int64_t{1} << 40;
  report.split = true;
  report.has_new_parameters = true;
  report.seed = ~uint64_t{0};
  return report;
}

StartReport rows(int64_t count, bool split = false) {
  StartReport report;
  report.has_loss = true;
  report.rows = count;
  report.split = split;
  return report;
}

StartReport schedule(uint32_t checksum, bool with_backward = true) {
  StartReport report;
  report.schedule = checksum;
  report.with_backward = with_backward;
  return report;
}

// Returns a layout of replicas of `ranks` ranks.
RankLayout replicas_of(int ranks) {
  RankLayout layout;
  layout.ranks = ranks;
  return layout;
}

// Returns two pipelines of two ranks.
RankLayout two_by_two() {
  RankLayout layout;
  layout.ranks = layout.replicas = 2;
  layout.rank_of_stage = {0, 1};
  return layout;
}

TEST(StartReport, ComesBack) {
  const StartReport back = StartReport::decode(start_report().encode());
  EXPECT_TRUE(back.refused);
  EXPECT_EQ(back.refusal, "no");
  EXPECT_EQ(back.schedule, 0xfedcba98);
  EXPECT_TRUE(back.with_backward);
  EXPECT_TRUE(back.training);
  EXPECT_TRUE(back.has_loss);
  EXPECT_EQ(back.rows, int64_t{1} << 40);
  EXPECT_TRUE(back.split);
  EXPECT_TRUE(back.has_new_parameters);
  EXPECT_EQ(back.seed, ~uint64_t{0});
  EXPECT_EQ(StartReport::decode(StartReport().encode()).rows, -1);
}

TEST(StartReport, IsRefusedIfItIsCutOffOrTooLong) {
  const std::string bytes = start_report().encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of([&] { StartReport::decode(bytes.substr(0, size)); }), "")
        << size;
  }
  EXPECT_NE(error_of([&] { StartReport::decode(bytes + "x"); }), "");
}

TEST(FindOtherRows, AcceptsEqualRowsPartsAndRanksWithoutTarget) {
  EXPECT_FALSE(
      find_other_rows({rows(8), rows(8), rows(4), rows(-1)}, two_by_two()));
  EXPECT_FALSE(find_other_rows({rows(8, true), rows(3, true), rows(4), rows(4)},
                               two_by_two()));
}

TEST(FindOtherRows, NamesBothRanksOfThePipeline) {
  const auto misfit =
      find_other_rows({rows(8), rows(8), rows(1), rows(7)}, two_by_two());
  ASSERT_TRUE(misfit);
  EXPECT_EQ(misfit->rank, 3);
  EXPECT_EQ(misfit->what,
            "the input of rank 2 has 1 row, but the target of rank 3 has 7; on "
            "the last rank, pass the target that belongs to the input of the "
            "first rank");
}

TEST(FindOtherRows, ComparesHowInputAndTargetAreGiven) {
  const auto misfit =
      find_other_rows({rows(8), rows(8, true), rows(8), rows(8)}, two_by_two());
  ASSERT_TRUE(misfit);
  EXPECT_EQ(misfit->rank, 1);
  EXPECT_EQ(misfit->what,
            "the input of rank 0 is one value, but the target of rank 1 is "
            "given as Microbatches; give both in the same way");
  // A target without tensors is one value, too.
  EXPECT_TRUE(find_other_rows({rows(8, true), rows(-1), rows(8), rows(8)},
                              two_by_two()));
  // Without a loss, the last rank was given no target.
  EXPECT_FALSE(find_other_rows(
      {rows(8, true), StartReport(), rows(8), StartReport()}, two_by_two()));
}

TEST(FindOtherSchedule, IsTheFirstThatIsNotTheMostCommon) {
  EXPECT_FALSE(find_other_schedule({schedule(5), schedule(5)}, replicas_of(1)));
  const auto first = find_other_schedule(
      {schedule(4), schedule(5), schedule(5)}, replicas_of(1));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(first->most, 1);
  const auto tie =
      find_other_schedule({schedule(4), schedule(5)}, replicas_of(2));
  ASSERT_TRUE(tie);
  EXPECT_EQ(tie->rank, 1);
  EXPECT_EQ(tie->most, 0);
}

TEST(FindOtherSchedule, ComparesOnlyWithinReplicasIfNoneHasBackwards) {
  const auto forward = [](uint32_t checksum) {
    return schedule(checksum, /*with_backward=*/false);
  };
  EXPECT_FALSE(find_other_schedule(
      {forward(4), forward(4), forward(5), forward(5)}, replicas_of(2)));
  const auto within = find_other_schedule(
      {forward(4), forward(4), forward(5), forward(6)}, replicas_of(2));
  ASSERT_TRUE(within);
  EXPECT_EQ(within->rank, 3);
  EXPECT_EQ(within->most, 2);
  // One replica trains and the other evaluates.
  const auto mixed = find_other_schedule(
      {schedule(4), schedule(4), forward(5), forward(5)}, replicas_of(2));
  ASSERT_TRUE(mixed);
  EXPECT_EQ(mixed->rank, 2);
  EXPECT_EQ(mixed->most, 0);
}

TEST(FindOtherMode, IsThatOfTheFewestRanksAmongThoseThatAreCompared) {
  const auto mode = [](bool training, bool with_backward) {
    StartReport report = schedule(4, with_backward);
    report.training = training;
    return report;
  };
  const auto forward = [&](bool training) { return mode(training, false); };
  const auto step = [&](bool training) { return mode(training, true); };
  EXPECT_FALSE(find_other_mode({step(true), step(true)}, replicas_of(1)));
  EXPECT_FALSE(find_other_mode({step(false), step(false)}, replicas_of(1)));
  const auto first = find_other_mode(
      {step(true), step(false), step(false), step(false)}, replicas_of(2));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(first->most, 1);
  // Without backwards the replicas need not agree.
  EXPECT_FALSE(find_other_mode(
      {forward(true), forward(true), forward(false), forward(false)},
      replicas_of(2)));
  const auto within = find_other_mode(
      {forward(true), forward(true), forward(false), forward(true)},
      replicas_of(2));
  ASSERT_TRUE(within);
  EXPECT_EQ(within->rank, 3);
  EXPECT_EQ(within->most, 2);
}

EndReport end_report() {
  EndReport report;
  report.drew = true;
  report.replica = 3;
  report.totals.losses = {0.5, -2};
  report.types = {at::kBFloat16, at::kDouble};
  report.totals.weighted = true;
  report.totals.sum = at::scalar_tensor(-1.5, at::kDouble);
  report.totals.weight = 0.1;
  report.totals.metrics = {
      {"correct", at::scalar_tensor((int64_t{1} << 60) + 1, at::kLong)},
      {"loss", at::scalar_tensor(0.5, at::kBFloat16)}};
  return report;
}

TEST(EndReport, ComesBack) {
  const EndReport back = EndReport::decode(end_report().encode());
  EXPECT_TRUE(back.drew);
  EXPECT_EQ(back.replica, 3);
  EXPECT_EQ(back.totals.losses, end_report().totals.losses);
  EXPECT_EQ(back.types, end_report().types);
  EXPECT_TRUE(back.totals.weighted);
  EXPECT_EQ(back.totals.sum.item<double>(), -1.5);
  EXPECT_EQ(back.totals.weight, 0.1);
  ASSERT_EQ(back.totals.metrics.size(), 2u);
  EXPECT_EQ(back.totals.metrics[0].first, "correct");
  EXPECT_EQ(back.totals.metrics[0].second.item<int64_t>(),
            (int64_t{1} << 60) + 1);
  EXPECT_EQ(back.totals.metrics[1].second.scalar_type(), at::kBFloat16);
  EXPECT_EQ(back.totals.metrics[1].second.item<double>(), 0.5);
  EXPECT_TRUE(EndReport::decode(EndReport().encode()).totals.losses.empty());
}

TEST(EndReport, IsRefusedIfItIsCutOffOrTooLong) {
  const std::string bytes = end_report().encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of([&] { EndReport::decode(bytes.substr(0, size)); }), "")
        << size;
  }
  EXPECT_NE(error_of([&] { EndReport::decode(bytes + "x"); }), "");
}

TEST(EndReport, IsRefusedIfALossIsNoFloatingPointNumber) {
  for (const char type : {'\x04', '\x7f', '\xc8'}) {
    std::string bytes = end_report().encode();
    bytes[1 + 4 + 8] = type;  // after drew, replica and the number of losses
    EXPECT_EQ(error_of([&] { EndReport::decode(bytes); }),
              "c10::Error: the end of a step says that a loss is of type " +
                  std::to_string(type) +
                  ", which is no floating-point number; run the same gpipe on "
                  "all ranks");
  }
}

// Reading such a count must end, and allocate nothing for it.
TEST(EndReport, IsRefusedIfItsLengthsAreHuge) {
  const uint64_t huge = uint64_t{1} << 61;
  std::string count;
  put(count, huge);
  std::string bytes = end_report().encode();
  const std::size_t losses = 1 + 4;  // after drew and replica
  bytes.replace(losses, count.size(), count);
  EXPECT_EQ(error_of([&] { EndReport::decode(bytes); }),
            "c10::Error: the end of a step says that it has " +
                std::to_string(huge) + " losses, for which its " +
                std::to_string(bytes.size()) +
                " bytes are not the right number; run the same gpipe on all "
                "ranks");
  // The number of metrics: after the count of two losses, the losses with their
  // types, weighted, the sum with its type, and the weight.
  bytes = end_report().encode();
  bytes.replace(losses + 8 + 2 * 9 + 1 + 9 + 8, count.size(), count);
  EXPECT_NE(error_of([&] { EndReport::decode(bytes); }), "");
}

}  // namespace
}  // namespace gpipe::internal
