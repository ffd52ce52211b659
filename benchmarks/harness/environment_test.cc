#include "benchmarks/harness/environment.h"

#include <gflags/gflags.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

DEFINE_string(toy, "usual", "A flag of the benchmarks.");

namespace gpipe::benchmarks {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(EnvironmentTest, TellsWhatAReaderNeeds) {
  const Environment environment = describe_environment();
  EXPECT_GT(environment.cores, 0);
  for (const char* name : {"cpu: ", "cores: ", "threads: ", "accelerators: ",
                           "libtorch: 2.", "compiler: ", "date: 20"}) {
    EXPECT_THAT(environment.to_string(), HasSubstr(name));
  }
}

TEST(EnvironmentTest, TellsTheFlagsThatWereGiven) {
  EXPECT_THAT(describe_environment().to_string(), Not(HasSubstr("flags: ")));
  ASSERT_EQ(setenv("HOME", "/home/somebody", /*overwrite=*/1), 0);
  FLAGS_toy = "/home/somebody/a.svg";
  EXPECT_THAT(describe_environment().to_string(),
              HasSubstr("\nflags: --toy=~/a.svg\n"));
}

TEST(EnvironmentTest, WarnsOfCompany) {
  Environment environment;
  environment.cores = 2;
  environment.load = 0.4;
  EXPECT_EQ(environment.warning(), "");
  environment.load = 1.4;
  EXPECT_EQ(environment.warning(),
            "Other work kept 1.4 of 2 cores busy at the start: do not trust "
            "these times.");
}

}  // namespace
}  // namespace gpipe::benchmarks
