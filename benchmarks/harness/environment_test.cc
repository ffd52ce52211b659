#include "benchmarks/harness/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

using ::testing::HasSubstr;

TEST(EnvironmentTest, TellsWhatAReaderNeeds) {
  const Environment environment = describe_environment();
  EXPECT_GT(environment.cores, 0);
  for (const char* name : {"cpu: ", "cores: ", "threads: ", "accelerators: ",
                           "libtorch: 2.", "compiler: ", "date: 20"}) {
    EXPECT_THAT(environment.to_string(), HasSubstr(name));
  }
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
