#include "benchmarks/resnet101_accuracy/plan.h"

#include <gflags/gflags.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Parses the flags as on a machine without accelerators.
AccuracyOptions parse(
    const std::vector<std::pair<std::string, std::string>>& flags) {
  const gflags::FlagSaver saver;
  gflags::SetCommandLineOption("devices", "cpu");
  for (const auto& [name, value] : flags) {
    EXPECT_NE(gflags::SetCommandLineOption(name.c_str(), value.c_str()), "")
        << name;
  }
  return parse_accuracy_options();
}

std::string error_of(
    const std::vector<std::pair<std::string, std::string>>& flags) {
  try {
    parse(flags);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(AccuracyPlan, WithoutFlagsIsASmallPipelineOfTwo) {
  const AccuracyOptions options = parse({});
  EXPECT_FALSE(options.rows_of_papers);
  ASSERT_THAT(options.plans, SizeIs(1));
  const AccuracyPlan& plan = options.plans[0];
  EXPECT_EQ(plan.experiment.partitions, 2);
  EXPECT_EQ(plan.experiment.batch_size, 64);
  EXPECT_EQ(plan.experiment.chunks, 4);
  EXPECT_EQ(plan.experiment.checkpoint, Checkpoint::kExceptLast);
  EXPECT_THAT(plan.experiment.balance, IsEmpty());
  EXPECT_EQ(plan.options.devices, "cpu,cpu");
  EXPECT_EQ(plan.options.epochs, 6);
  EXPECT_EQ(plan.options.size, 32);
  EXPECT_DOUBLE_EQ(plan.rate.base, 0.001);
  EXPECT_DOUBLE_EQ(plan.rate.warmup_from, 0.0001);
  EXPECT_EQ(plan.rate.warmup_epochs, 1);
  EXPECT_THAT(plan.rate.milestones, ElementsAre(2, 4, 6));
  EXPECT_EQ(plan.options.momentum, 0.9);
  EXPECT_EQ(plan.options.weight_decay, 1e-4);
  EXPECT_EQ(plan.left_out, "");
}

TEST(AccuracyPlan, RateZeroIsThatOfThePapersForTheMiniBatch) {
  const AccuracyPlan plan =
      parse({{"lr", "0"}, {"batch_size", "512"}}).plans.at(0);
  EXPECT_DOUBLE_EQ(plan.rate.base, 0.2);
  EXPECT_DOUBLE_EQ(plan.rate.warmup_from, 0.1);
}

TEST(AccuracyPlan, ARowAtThePapersSizeHasItsSettings) {
  const AccuracyOptions options =
      parse({{"experiment", "pipeline-1k"}, {"scale", "paper"}});
  EXPECT_TRUE(options.rows_of_papers);
  ASSERT_THAT(options.plans, SizeIs(1));
  const AccuracyPlan& plan = options.plans[0];
  EXPECT_EQ(plan.experiment.name, "pipeline-1k");
  EXPECT_EQ(plan.experiment.batch_size, 1024);
  EXPECT_EQ(plan.experiment.chunks, 64);
  EXPECT_THAT(plan.experiment.balance,
              ElementsAre(26, 22, 33, 44, 44, 66, 66, 69));
  EXPECT_EQ(plan.options.devices, "cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu");
  EXPECT_EQ(plan.options.epochs, 90);
  EXPECT_EQ(plan.options.size, 224);
  EXPECT_DOUBLE_EQ(plan.rate.base, 0.4);
  EXPECT_DOUBLE_EQ(plan.rate.warmup_from, 0.1);
  EXPECT_EQ(plan.rate.warmup_epochs, 4);
  EXPECT_THAT(plan.rate.milestones, ElementsAre(30, 60, 80));
  EXPECT_EQ(plan.published_devices, 8);
}

TEST(AccuracyPlan, WithoutAcceleratorsRowsAreSmall) {
  const AccuracyOptions options = parse({{"experiment", "pipeline-1k"}});
  EXPECT_TRUE(options.small);
  const AccuracyPlan& plan = options.plans.at(0);
  EXPECT_EQ(plan.experiment.batch_size, 128);
  EXPECT_EQ(plan.options.epochs, 6);
  EXPECT_EQ(plan.options.size, 32);
  EXPECT_DOUBLE_EQ(plan.rate.base, 0.004);
  EXPECT_DOUBLE_EQ(plan.rate.warmup_from, 0.0004);
}

TEST(AccuracyPlan, FlagsChangeRows) {
  const AccuracyOptions options =
      parse({{"experiment", "naive-128,pipeline-256"},
             {"scale", "paper"},
             {"batch_size", "96"},
             {"chunks", "3"},
             {"balance", "100,270"},
             {"epochs", "9"},
             {"image_size", "64"},
             {"crop", "none"},
             {"lr", "0.03"},
             {"warmup_epochs", "2"},
             {"milestones", "5"}});
  ASSERT_THAT(options.plans, SizeIs(2));
  const AccuracyPlan& plan = options.plans[1];
  EXPECT_EQ(plan.experiment.batch_size, 96);
  EXPECT_EQ(plan.experiment.chunks, 3);
  EXPECT_THAT(plan.experiment.balance, ElementsAre(100, 270));
  EXPECT_EQ(plan.options.epochs, 9);
  EXPECT_EQ(plan.options.size, 64);
  EXPECT_EQ(plan.options.crop, "none");
  EXPECT_EQ(plan.options.batch, 96);
  EXPECT_DOUBLE_EQ(plan.rate.base, 0.03);
  EXPECT_DOUBLE_EQ(plan.rate.warmup_from, 0.003);
  EXPECT_EQ(plan.rate.warmup_epochs, 2);
  EXPECT_THAT(plan.rate.milestones, ElementsAre(5));
  // The first plan is that of the plain model.
  EXPECT_EQ(options.plans[0].experiment.partitions, 0);
  EXPECT_EQ(options.plans[0].experiment.batch_size, 96);
  EXPECT_EQ(options.plans[0].experiment.chunks, 1);
  EXPECT_EQ(options.plans[0].options.devices, "cpu");
}

TEST(AccuracyPlan, RowsThatAreLeftOutKeepWhatThePaperSays) {
  const AccuracyOptions options =
      parse({{"experiment", "dataparallel-1k"}, {"batch_size", "8"}});
  const AccuracyPlan& plan = options.plans.at(0);
  EXPECT_THAT(plan.left_out, HasSubstr("8 devices"));
  EXPECT_EQ(plan.experiment.batch_size, 1024);
  EXPECT_DOUBLE_EQ(plan.rate.base, 0.4);
}

TEST(AccuracyPlan, AllIsEveryRow) {
  EXPECT_THAT(parse({{"experiment", "all"}}).plans, SizeIs(17));
}

TEST(AccuracyPlan, FlagsWithoutSenseAreToldWithTheRemedy) {
  EXPECT_THAT(error_of({{"experiment", "nonsense"}}),
              AllOf(HasSubstr("there is no 'nonsense'"),
                    HasSubstr("pipeline-256"), HasSubstr("and all")));
  EXPECT_THAT(
      error_of({{"experiment", "all"}, {"partitions", "4"}}),
      HasSubstr("--partitions=4: the rows of --experiment have their own"));
  EXPECT_THAT(error_of({{"scale", "small"}}), HasSubstr("--experiment"));
  EXPECT_THAT(error_of({{"batch_size", "10"}}),
              HasSubstr("--batch_size=10 is not a multiple of --chunks=4"));
  EXPECT_THAT(error_of({{"balance", "100,100,170"}}),
              HasSubstr("--balance=100,100,170 does not fit --partitions=2"));
  EXPECT_THAT(error_of({{"balance", "100,100"}}), HasSubstr("370 layers"));
  EXPECT_THAT(error_of({{"experiment", "naive-128"}, {"balance", "100,270"}}),
              HasSubstr("no chosen experiment has 2 partitions"));
  EXPECT_THAT(error_of({{"held_out", "1"}}), HasSubstr("--held_out"));
  EXPECT_THAT(error_of({{"crop", "round"}}), HasSubstr("--crop=round"));
}

}  // namespace
}  // namespace gpipe::benchmarks
