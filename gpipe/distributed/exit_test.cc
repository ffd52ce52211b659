// A process ends with the status that it gives to exit(), whatever pipelines
// and Worlds still live. The environment variable EXITING contains the path of
// testing/exiting.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/base/processes.h"
#include "gpipe/testing/process.h"

namespace gpipe {
namespace {

// The output of a process, and how it has ended.
struct Ended {
  std::string out, err, exit;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

// Runs the programs `EXITING way status`, one for each status, at the same
// time. `is_world`: whether they are the ranks of one world.
std::vector<Ended> run(const std::string& way, const std::vector<int>& statuses,
                       bool is_world, const Environment& environment = {}) {
  const std::string port = is_world ? std::to_string(free_port()) : "";
  std::vector<Command> commands;
  for (std::size_t k = 0; k < statuses.size(); ++k) {
    Command& command = commands.emplace_back();
    command.program = std::getenv("EXITING");
    command.arguments = {way, std::to_string(statuses[k])};
    command.environment = environment;
    // Threads that fork() has not copied would be reported as leaks.
    command.environment.emplace_back("ASAN_OPTIONS", "detect_leaks=0");
    if (!is_world) continue;
    const std::string size = std::to_string(statuses.size());
    for (auto& each : Environment{{"RANK", std::to_string(k)},
                                  {"WORLD_SIZE", size},
                                  {"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", port}}) {
      command.environment.push_back(std::move(each));
    }
  }
  std::vector<Ended> ended(statuses.size());
  std::mutex mutex;
  Processes processes(
      commands, [&](int k, Stream stream, std::string_view line) {
        const std::lock_guard<std::mutex> lock(mutex);
        auto& text = stream == Stream::kStdout ? ended[k].out : ended[k].err;
        text.append(line).append("\n");
      });
  EXPECT_TRUE(
      processes.wait_all(Processes::Clock::now() + std::chrono::seconds(120)))
      << way << " hangs";
  for (std::size_t k = 0; k < statuses.size(); ++k) {
    const auto exit = processes.exit_of(static_cast<int>(k));
    ended[k].exit = exit ? to_string(*exit) : "hangs";
  }
  return ended;
}

// Expects that two processes which end with 7 and 0 do so without a message.
void expect_own_status(const char* way, bool as_ranks) {
  for (int round = 0; round < testing::rounds(1, 100); ++round) {
    const std::vector<Ended> ended = run(way, {7, 0}, as_ranks);
    EXPECT_EQ(ended[0].exit, "exit code 7") << ended[0].err;
    EXPECT_EQ(ended[1].exit, "exit code 0") << ended[1].err;
    for (const Ended& each : ended) EXPECT_EQ(each.err, "");
  }
}

class OneProcess : public ::testing::TestWithParam<const char*> {};

TEST_P(OneProcess, EndsWithItsOwnStatus) {
  expect_own_status(GetParam(), /*as_ranks=*/false);
}

INSTANTIATE_TEST_SUITE_P(
    , OneProcess,
    ::testing::Values("local_world", "leaked_world", "static_world",
                      "global_world", "leaked_gpipe", "new_gpipe",
                      "static_gpipe", "loss_of_gpipe", "loss_of_static_gpipe",
                      "hook_of_static_gpipe", "beside_gpipe",
                      "beside_static_gpipe", "fork_with_static_gpipe"),
    [](const auto& info) { return std::string(info.param); });

class Ranks : public ::testing::TestWithParam<const char*> {};

TEST_P(Ranks, EndWithTheirOwnStatus) {
  expect_own_status(GetParam(), /*as_ranks=*/true);
}

INSTANTIATE_TEST_SUITE_P(
    , Ranks,
    ::testing::Values("local_world", "leaked_world", "static_world",
                      "global_world", "loss_of_distributed",
                      "loss_of_static_distributed", "static_distributed",
                      "sends_of_static_distributed", "leaked_distributed"),
    [](const auto& info) { return std::string(info.param); });

// exit() in the middle of a step is a death for the other ranks: the
// connections close without a goodbye.
TEST(Exit, InALossIsADeathForTheOtherRank) {
  for (const char* const way :
       {"loss_of_distributed", "loss_of_static_distributed"}) {
    const std::vector<Ended> ended = run(way, {0, 5}, true);
    EXPECT_EQ(ended[0].out, "fault has died\n") << way;
    EXPECT_EQ(ended[0].exit, "exit code 0") << way;
    EXPECT_EQ(ended[1].exit, "exit code 5") << way;
  }
}

TEST(Exit, FlushesStandardOutput) {
  EXPECT_EQ(run("local_world", {0}, false)[0].out, "exits\nunflushed\n");
}

}  // namespace
}  // namespace gpipe
