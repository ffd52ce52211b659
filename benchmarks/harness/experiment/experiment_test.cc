#include "benchmarks/harness/experiment/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

std::vector<Experiment> make_experiments() {
  std::vector<Experiment> experiments(3);
  experiments[0].name = "baseline";
  experiments[1].name = "pipeline-1";
  experiments[2].name = "pipeline-2";
  return experiments;
}

std::vector<std::string> select(const std::string& names) {
  std::vector<std::string> selected;
  for (const auto& experiment : select_experiments(make_experiments(), names)) {
    selected.push_back(experiment.name);
  }
  return selected;
}

TEST(SelectExperimentsTest, KeepsTheOrderOfTheTable) {
  EXPECT_THAT(select("all"),
              ElementsAre("baseline", "pipeline-1", "pipeline-2"));
  EXPECT_THAT(select("pipeline-2,baseline"),
              ElementsAre("baseline", "pipeline-2"));
  EXPECT_THAT(select(" pipeline-2 "), ElementsAre("pipeline-2"));
}

TEST(SelectExperimentsTest, AllMayStandAmongOthers) {
  EXPECT_EQ(select("pipeline-2, all"), select("all"));
  EXPECT_THROW(select("all,none"), std::invalid_argument);
}

TEST(SelectExperimentsTest, ListsThoseThatThereAreForAnUnknownOne) {
  try {
    select("baseline,pipeline-3");
    FAIL() << "an unknown experiment was taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "--experiment: there is no 'pipeline-3'; there are baseline, "
                 "pipeline-1, pipeline-2 and all");
  }
  EXPECT_THROW(select(""), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::benchmarks
