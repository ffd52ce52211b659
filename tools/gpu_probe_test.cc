// Tests of tools/gpu_probe on the CPU. The environment variables PROBE and
// LAUNCH contain the paths of the programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace gpipe::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int status = -1;
  std::string output;  // stdout and stderr
};

// Runs a shell command until it ends.
Ended run(const std::string& command) {
  Ended ended;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return ended;
  std::array<char, 4096> part{};
  while (const auto size = std::fread(part.data(), 1, part.size(), pipe)) {
    ended.output.append(part.data(), size);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.status = WEXITSTATUS(status);
  return ended;
}

// Returns the command that starts two ranks of the probe.
std::string two_ranks(const std::string& flags) {
  return "$LAUNCH --nproc=2 --grace=60 -- $PROBE --check=ranks " + flags;
}

TEST(GpuProbe, CountsAccelerators) {
  const Ended ended = run("$PROBE --check=devices");
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.output, "accelerators: 0\n");
}

TEST(GpuProbe, SaysThatACheckIsNotPossible) {
  const Ended ended = run("$PROBE --check=near-full");
  EXPECT_EQ(ended.status, 77);
  EXPECT_EQ(ended.output, "a CPU has no limit of memory to reach\n");
}

TEST(GpuProbe, RefusesAnUnknownCheck) {
  const Ended ended = run("$PROBE --check=all");
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, HasSubstr("there is no check 'all': use devices"));
}

TEST(GpuProbe, RanksHaveTheBitsOfOneProcess) {
  const Ended ended = run(two_ranks("--at_end='echo all ranks are here'"));
  EXPECT_EQ(ended.status, 0) << ended.output;
  const std::string passed =
      "10 steps and 5 of another shape have the bits of one process\n";
  EXPECT_THAT(ended.output,
              AllOf(HasSubstr("[0] " + passed), HasSubstr("[1] " + passed),
                    HasSubstr("[0] all ranks are here\n"),
                    Not(HasSubstr("[1] all ranks are here"))));
}

TEST(GpuProbe, FailsIfTheCommandAtTheEndFails) {
  const Ended ended = run(two_ranks("--at_end='exit 3'"));
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("'exit 3' ended with status 768"));
}

TEST(GpuProbe, TheOtherRankIsToldWhichRankWasKilled) {
  for (const char* place : {"connected", "built", "forward"}) {
    const Ended ended = run(two_ranks(std::string("--die_at=") + place));
    EXPECT_EQ(ended.status, 137) << place << ": " << ended.output;
    EXPECT_THAT(ended.output,
                HasSubstr("[0] told of the end of rank 1: rank 1 has died"))
        << place;
  }
}

TEST(GpuProbe, RefusesOneRank) {
  const Ended ended = run("$PROBE --check=ranks");
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, HasSubstr("but the world has 1"));
}

}  // namespace
}  // namespace gpipe::tools
