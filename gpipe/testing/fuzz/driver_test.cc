// Runs the fuzz target whose path is in the variable PLANTED.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace gpipe::testing {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  bool ok = false;
  std::string text;  // stdout and stderr
  std::string left;  // the failing input
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Outcome run(const std::string& fault, const std::string& flags = "") {
  const std::string folder = ::testing::TempDir() + "corpus";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/one") << "F1";
  const std::string left = ::testing::TempDir() + "failed_input";
  std::filesystem::remove(left);
  const std::string command =
      "FAULT='" + fault + "' TEST_UNDECLARED_OUTPUTS_DIR='" +
      ::testing::TempDir() + "' " + std::getenv("PLANTED") + " --runs=100000 " +
      flags + " " + folder + " 2>&1";
  Outcome outcome;
  std::FILE* const pipe = popen(command.c_str(), "r");
  char buffer[4096];
  while (const std::size_t size = fread(buffer, 1, sizeof buffer, pipe)) {
    outcome.text.append(buffer, size);
  }
  outcome.ok = pclose(pipe) == 0;
  outcome.left = read_file(left);
  return outcome;
}

TEST(DriverTest, PassesWithoutAFault) {
  const Outcome outcome = run("");
  EXPECT_TRUE(outcome.ok) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("100001 inputs (1 of the corpus), "));
  EXPECT_EQ(outcome.left, "");
}

TEST(DriverTest, LeavesTheInputOfEachKindOfFailure) {
  for (const char* fault : {"abort", "exception", "segmentation", "recursion",
                            "memory", "oracle"}) {
    const Outcome outcome = run(fault);
    EXPECT_FALSE(outcome.ok) << fault;
    EXPECT_EQ(outcome.left, "F7") << fault;
    EXPECT_THAT(outcome.text, HasSubstr("the input is in ")) << fault;
  }
}

TEST(DriverTest, FailsIfHardlyAnythingIsParsed) {
  const Outcome outcome = run("refuses all");
  EXPECT_FALSE(outcome.ok);
  EXPECT_THAT(outcome.text, HasSubstr("fewer than 100 of one kind"));
}

TEST(DriverTest, DoesTheSameForTheSameSeed) {
  const auto totals = [](const std::string& flags) {
    const std::string text = run("", flags).text;
    return text.substr(0, text.find(", in "));
  };
  EXPECT_EQ(totals("--seed=3"), totals("--seed=3"));
  EXPECT_NE(totals("--seed=3"), totals("--seed=4"));
}

}  // namespace
}  // namespace gpipe::testing
