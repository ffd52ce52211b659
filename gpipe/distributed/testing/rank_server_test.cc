#include "gpipe/distributed/testing/rank_server.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpipe/base/processes.h"
#include "gpipe/testing/process.h"

namespace gpipe::testing {
namespace {

constexpr char kRole[] = "RANK_SERVER_TEST_ROLE";

using Clock = Processes::Clock;

Command rank(const std::string& role) {
  return {"/proc/self/exe", {}, {{kRole, role}}, fork_rank};
}

// The output of a rank, by lines.
class Log {
 public:
  Processes::OnLine listener() {
    return [this](int, Stream, std::string_view line) {
      std::lock_guard<std::mutex> lock(mutex_);
      lines_.emplace_back(line);
    };
  }
  std::vector<std::string> lines() {
    std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

std::vector<std::string> lines_of(const std::string& role) {
  Log log;
  Processes processes({rank(role)}, log.listener());
  EXPECT_TRUE(processes.wait_all(Clock::now() + std::chrono::minutes(1)));
  EXPECT_TRUE(processes.exit_of(0)->ok()) << to_string(*processes.exit_of(0));
  return log.lines();
}

std::ptrdiff_t count_files(const char* folder) {
  const std::filesystem::directory_iterator files(folder);
  return std::distance(begin(files), end(files));
}

// Prints what the tests ask for. Returns the exit code.
int be_a_rank(const std::string& role) {
  if (role == "itself") {
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, nullptr, &blocked);
    // The environment at the time when the libraries were loaded.
    std::ifstream file("/proc/self/environ");
    const std::string loaded_in(std::istreambuf_iterator<char>(file), {});
    file.close();
    std::cout << getppid() << "\n"
              << (getpgrp() == getpid()) << (sigisemptyset(&blocked) == 1)
              << (std::cin.get() == EOF)
              << (loaded_in.find("OMP_NUM_THREADS=1") != std::string::npos)
              // Three, and the folder itself.
              << (count_files("/proc/self/fd") == 4) << std::endl;
  }
  if (role == "variables") {
    std::cout << std::getenv("RANK_SERVER_TEST") << std::endl;
  }
  if (role == "killed") raise(SIGKILL);
  if (role == "stays") {
    std::cout << getpid() << std::endl;
    std::this_thread::sleep_for(std::chrono::minutes(5));
  }
  if (role == "parent") {
    Processes child({rank("stays")}, [](int, Stream, std::string_view line) {
      std::cout << line << std::endl;
    });
    child.wait_all(Clock::time_point::max());
  }
  return role == "failed" ? 3 : 0;
}

TEST(RankServerTest, ARankIsAsIfItHadBeenStartedByFork) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  EXPECT_EQ(lines_of("itself"),
            (std::vector<std::string>{std::to_string(getpid()), "11111"}));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(RankServerTest, GivesTheEnvironmentOfTheMoment) {
  for (const std::string value : {"one", "two"}) {
    setenv("RANK_SERVER_TEST", value.c_str(), /*overwrite=*/1);
    EXPECT_EQ(lines_of("variables"), std::vector<std::string>{value});
  }
}

TEST(RankServerTest, SaysHowARankHasEnded) {
  Processes processes({rank("failed"), rank("killed")},
                      [](int, Stream, std::string_view) {});
  ASSERT_TRUE(processes.wait_all(Clock::now() + std::chrono::minutes(1)));
  EXPECT_EQ(processes.exit_of(0)->code, 3);
  EXPECT_EQ(processes.exit_of(1)->signal, SIGKILL);
}

TEST(RankServerTest, NoRankOutlivesATestThatIsKilled) {
  Log log;
  Processes parent({{"/proc/self/exe", {}, {{kRole, "parent"}}}},
                   log.listener());
  comes_true([&] { return !log.lines().empty(); });
  ASSERT_EQ(log.lines().size(), 1u);
  const pid_t left = std::stoi(log.lines()[0]);
  ASSERT_EQ(kill(left, 0), 0);
  kill(parent.pid_of(0), SIGKILL);  // not the process group
  // This process may be the reaper of its orphans.
  EXPECT_TRUE(comes_true([&] {
    waitpid(left, nullptr, WNOHANG);
    return kill(left, 0) == -1;
  }));
}

}  // namespace
}  // namespace gpipe::testing

int main(int argc, char** argv) {
  gpipe::testing::serve_ranks();
  if (const char* const role = std::getenv(gpipe::testing::kRole)) {
    return gpipe::testing::be_a_rank(role);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
