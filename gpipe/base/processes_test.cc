#include "gpipe/base/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <tuple>

#include "gpipe/testing/process.h"

namespace gpipe {
namespace {

using testing::comes_true;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::runs;

using Clock = Processes::Clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Returns a deadline for events that take milliseconds; reached only if they
// fail.
Clock::time_point soon() { return Clock::now() + seconds(30); }

bool exists(pid_t pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

Command shell(const std::string& script) { return {"/bin/sh", {"-c", script}}; }

// All lines that ranks write.
class Log {
 public:
  Processes::OnLine listener() {
    return [this](int rank, Stream stream, std::string_view line) {
      std::lock_guard<std::mutex> lock(mutex_);
      lines_[{rank, stream}].emplace_back(line);
    };
  }

  std::vector<std::string> lines(int rank,
                                 Stream stream = Stream::kStdout) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = lines_.find({rank, stream});
    return found == lines_.end() ? std::vector<std::string>() : found->second;
  }

  // Blocks until a rank has written a line, and returns the first one.
  std::string first(int rank) const {
    EXPECT_TRUE(comes_true([&] { return !lines(rank).empty(); }));
    return lines(rank).empty() ? "" : lines(rank)[0];
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int, Stream>, std::vector<std::string>> lines_;
};

constexpr char kStays[] = "echo ready; exec sleep 1000";
constexpr char kIgnoresTerm[] = "trap '' TERM; echo ready; exec sleep 1000";

TEST(ProcessesTest, KnowsExitCodesAndSignals) {
  Log log;
  Processes processes({shell("exit 0"), shell("exit 3"), shell("kill -9 $$")},
                      log.listener());
  EXPECT_EQ(processes.size(), 3);
  ASSERT_TRUE(processes.wait_all(soon()));
  const auto fields = [&](int rank) {
    const Exit exit = *processes.exit_of(rank);
    EXPECT_GT(exit.seconds, 0);
    EXPECT_LT(exit.seconds, 30);
    return std::make_tuple(exit.code, exit.signal, exit.ok(), to_string(exit));
  };
  EXPECT_EQ(fields(0), std::make_tuple(0, 0, true, "exit code 0"));
  EXPECT_EQ(fields(1), std::make_tuple(3, 0, false, "exit code 3"));
  EXPECT_EQ(fields(2), std::make_tuple(-1, 9, false, "signal 9 (Killed)"));
}

TEST(ProcessesTest, RunsNothingForNoCommands) {
  Log log;
  Processes processes({}, log.listener());
  EXPECT_EQ(processes.size(), 0);
  EXPECT_TRUE(processes.wait_all(Clock::now()));
  EXPECT_EQ(processes.wait_any(soon()), std::nullopt);
}

TEST(ProcessesTest, DeliversLinesByRankAndStream) {
  Log log;
  Processes processes(
      {shell("for i in 1 2 3; do echo a$i; echo A$i >&2; done"),
       shell("for i in 1 2 3; do echo b$i; done; echo; echo end")},
      log.listener());
  ASSERT_TRUE(processes.wait_all(soon()));
  EXPECT_THAT(log.lines(0), ElementsAre("a1", "a2", "a3"));
  EXPECT_THAT(log.lines(0, Stream::kStderr), ElementsAre("A1", "A2", "A3"));
  EXPECT_THAT(log.lines(1), ElementsAre("b1", "b2", "b3", "", "end"));
  EXPECT_THAT(log.lines(1, Stream::kStderr), IsEmpty());
}

TEST(ProcessesTest, DeliversLinesWhileTheRankRuns) {
  Log log;
  Processes processes({shell(kStays)}, log.listener());
  EXPECT_EQ(log.first(0), "ready");
  EXPECT_EQ(processes.exit_of(0), std::nullopt);
}

TEST(ProcessesTest, PutsALineTogetherThatIsWrittenInParts) {
  Log log;
  Processes processes({shell("printf one; printf ' two'; sleep 0.02; "
                             "printf ' three\\nfour\\n'")},
                      log.listener());
  ASSERT_TRUE(processes.wait_all(soon()));
  EXPECT_THAT(log.lines(0), ElementsAre("one two three", "four"));
}

// What a rank delivers and shows, in order. A shown text ends in "~".
std::vector<std::string> progress_of(const std::string& script) {
  std::vector<std::string> all;
  const auto add = [&](const char* end) {
    return [&all, end](int, Stream, std::string_view text) {
      all.push_back(std::string(text) + end);
    };
  };
  Processes processes({shell(script)}, add(""), 5, add("~"));
  EXPECT_TRUE(processes.wait_all(soon()));
  return all;
}

TEST(ProcessesTest, ShowsPartsOfALineWithReturns) {
  const std::string pause = "; sleep 0.05; ";
  EXPECT_THAT(progress_of("printf '1\\r'" + pause + "printf '2\\r3\\r'" +
                          pause + "printf '4\\n'"),
              ElementsAre("1~", "2~", "3~", "4"));
  EXPECT_THAT(progress_of("printf '\\r1'" + pause + "printf '\\r2'" + pause +
                          "printf '\\r3\\nend\\n'"),
              ElementsAre("1~", "2~", "3", "end"));
  // The last text is a line, too.
  EXPECT_THAT(progress_of("printf '1\\r'"), ElementsAre("1~", "1"));
  EXPECT_THAT(progress_of("printf '1\\r'" + pause + "printf '\\n'"),
              ElementsAre("1~", "1"));
  EXPECT_THAT(progress_of("printf 'no\\r\\nprogress'" + pause + "echo"),
              ElementsAre("no\r", "progress"));
}

TEST(ProcessesTest, DeliversALastLineThatHasNoEnd) {
  Log log;
  Processes processes({shell("echo one; printf two; printf three >&2")},
                      log.listener());
  ASSERT_TRUE(processes.wait_all(soon()));
  EXPECT_THAT(log.lines(0), ElementsAre("one", "two"));
  EXPECT_THAT(log.lines(0, Stream::kStderr), ElementsAre("three"));
}

TEST(ProcessesTest, CutsLongLinesIntoPieces) {
  const auto sizes = [](const std::string& script) {
    Log log;
    Processes processes({shell(script)}, log.listener());
    EXPECT_TRUE(processes.wait_all(soon()));
    std::vector<std::size_t> sizes;
    for (const std::string& line : log.lines(0)) sizes.push_back(line.size());
    return sizes;
  };
  const std::string zeros = "head -c 3000000 /dev/zero | tr '\\0' x; ";
  std::vector<std::size_t> pieces(45, 65536);
  pieces.push_back(3000000 - 45 * 65536);
  EXPECT_EQ(sizes(zeros + "echo; echo yes"),
            (pieces.push_back(3), pieces));  // the line "yes"
  pieces.pop_back();
  EXPECT_EQ(sizes(zeros), pieces);
  // A line of maximal size is not followed by an empty line.
  EXPECT_THAT(sizes("head -c 65536 /dev/zero; echo; head -c 65537 /dev/zero"),
              ElementsAre(65536, 65536, 1));
}

TEST(ProcessesTest, DeliversAllBeforeTheEndIsKnown) {
  Log log;
  Processes processes({shell("seq 1 20000; seq 1 20000 >&2")}, log.listener());
  ASSERT_EQ(processes.wait_any(soon()), 0);
  EXPECT_EQ(log.lines(0).size(), 20000u);
  EXPECT_EQ(log.lines(0, Stream::kStderr).size(), 20000u);
}

TEST(ProcessesTest, DoesNotWaitForOutputOfWhatARankHasStarted) {
  Log log;
  // The sleeping process keeps the pipe open.
  Processes processes({shell("sleep 1000 & echo done")}, log.listener());
  ASSERT_EQ(processes.wait_any(soon()), 0);
  EXPECT_THAT(log.lines(0), ElementsAre("done"));
}

TEST(ProcessesTest, SetsVariables) {
  setenv("PROCESSES_TEST_KEPT", "kept", 1);
  setenv("PROCESSES_TEST_CHANGED", "before", 1);
  Log log;
  Processes processes({{"/usr/bin/env",
                        {},
                        {{"PROCESSES_TEST_CHANGED", "after"},
                         {"PROCESSES_TEST_NEW", "a=b c"}}}},
                      log.listener());
  ASSERT_TRUE(processes.wait_all(soon()));
  std::vector<std::string> ours;
  for (const std::string& line : log.lines(0)) {
    if (line.rfind("PROCESSES_TEST_", 0) == 0) ours.push_back(line);
  }
  EXPECT_THAT(ours,
              ::testing::UnorderedElementsAre("PROCESSES_TEST_KEPT=kept",
                                              "PROCESSES_TEST_CHANGED=after",
                                              "PROCESSES_TEST_NEW=a=b c"));
  EXPECT_STREQ(getenv("PROCESSES_TEST_CHANGED"), "before");
}

TEST(ProcessesTest, LooksForNamesInThePath) {
  Log log;
  Processes processes({{"sh", {"-c", "echo $0 $1", "name", "argument"}}},
                      log.listener());
  ASSERT_TRUE(processes.wait_all(soon()));
  EXPECT_THAT(log.lines(0), ElementsAre("name argument"));
}

TEST(ProcessesTest, GivesAnEmptyStdin) {
  // A stdin for this test that never ends.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int before = dup(STDIN_FILENO);
  dup2(ends[0], STDIN_FILENO);
  Log log;
  {
    Processes processes({{"readlink", {"/proc/self/fd/0"}}}, log.listener());
    EXPECT_TRUE(processes.wait_all(soon()));
  }
  dup2(before, STDIN_FILENO);
  for (const int fd : {before, ends[0], ends[1]}) close(fd);
  EXPECT_THAT(log.lines(0), ElementsAre("/dev/null"));
}

TEST(ProcessesTest, StartsRanksWithNoSignalBlocked) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Log log;
  Processes processes({shell("kill -TERM $$; echo survived")}, log.listener());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(processes.wait_all(soon()));
  EXPECT_EQ(processes.exit_of(0)->signal, SIGTERM);
}

TEST(ProcessesTest, WaitAnyGivesEachEndOnceInTheirOrder) {
  Log log;
  Processes processes({shell(kStays), shell("exit 1"), shell(kStays)},
                      log.listener());
  EXPECT_EQ(processes.wait_any(soon()), 1);
  processes.signal(2, SIGKILL);
  EXPECT_EQ(processes.wait_any(soon()), 2);
  EXPECT_EQ(processes.wait_any(Clock::now() + milliseconds(5)), std::nullopt);
  EXPECT_FALSE(processes.wait_all(Clock::now() + milliseconds(5)));
  processes.signal(0, SIGKILL);
  EXPECT_EQ(processes.wait_any(soon()), 0);
  EXPECT_TRUE(processes.wait_all(soon()));
  // Returns at once, because no rank is left.
  EXPECT_EQ(processes.wait_any(Clock::time_point::max()), std::nullopt);
}

// Blocks the thread that reads the ranks' output when rank 0 writes "hold".
class Brake {
 public:
  Processes::OnLine listener(Log& log) {
    return [this, log = log.listener()](int rank, Stream stream,
                                        std::string_view line) {
      log(rank, stream, line);
      if (rank == 0 && line == "hold") {
        is_held_ = true;
        std::lock_guard<std::mutex> wait(mutex_);
      }
    };
  }
  bool is_held() const { return is_held_; }
  void release() { lock_.unlock(); }

 private:
  std::mutex mutex_;
  std::unique_lock<std::mutex> lock_{mutex_};
  std::atomic<bool> is_held_{false};
};

constexpr char kHolds[] =
    "trap 'echo hold; exit 1' USR1; echo ready; while :; do sleep 0.01; done";

TEST(ProcessesTest, OfSeveralEndsTakesThatByASignalForTheFirst) {
  Log log;
  Brake brake;
  Processes processes({shell(kHolds), shell(kHolds), shell(kStays)},
                      brake.listener(log));
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(log.first(rank), "ready");
  processes.signal(0, SIGUSR1);
  ASSERT_TRUE(comes_true([&] { return brake.is_held(); }));
  processes.signal(1, SIGUSR1);
  ASSERT_TRUE(comes_true([&] { return !runs(processes.pid_of(1)); }));
  processes.signal(2, SIGKILL);
  ASSERT_TRUE(comes_true([&] { return !runs(processes.pid_of(2)); }));
  brake.release();
  std::vector<int> order;
  while (const auto rank = processes.wait_any(soon())) order.push_back(*rank);
  EXPECT_EQ(order.size(), 3u);
  const auto place = [&](int rank) {
    return std::find(order.begin(), order.end(), rank) - order.begin();
  };
  EXPECT_LT(place(2), place(1));
}

TEST(ProcessesTest, ListensOnAfterAnEndThatIsSeenTogetherWithOutput) {
  Log log;
  Brake brake;
  // Rank 1's pipe stays open, without further output.
  Processes processes({shell(kHolds),
                       shell("trap 'sleep 1000 & echo bye; exit' "
                             "USR1; echo ready; "
                             "while :; do sleep 0.01; done"),
                       shell(kHolds)},
                      brake.listener(log));
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(log.first(rank), "ready");
  processes.signal(0, SIGUSR1);
  ASSERT_TRUE(comes_true([&] { return brake.is_held(); }));
  processes.signal(1, SIGUSR1);
  ASSERT_TRUE(comes_true([&] { return !runs(processes.pid_of(1)); }));
  brake.release();
  ASSERT_TRUE(comes_true([&] { return processes.exit_of(1).has_value(); }));
  EXPECT_THAT(log.lines(1), ElementsAre("ready", "bye"));
  processes.signal(2, SIGUSR1);
  EXPECT_TRUE(comes_true([&] { return processes.exit_of(2).has_value(); }));
}

TEST(ProcessesTest, SignalsOneRankOrAll) {
  const std::string script =
      "trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done";
  Log log;
  Processes processes({shell(script), shell(script), shell(script)},
                      log.listener());
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(log.first(rank), "ready");
  processes.signal(1, SIGUSR1);
  EXPECT_EQ(processes.wait_any(soon()), 1);
  EXPECT_EQ(processes.exit_of(1)->code, 7);
  EXPECT_EQ(processes.exit_of(0), std::nullopt);
  processes.signal_all(SIGUSR1);
  ASSERT_TRUE(processes.wait_all(soon()));
  EXPECT_EQ(processes.exit_of(0)->code, 7);
  EXPECT_EQ(processes.exit_of(2)->code, 7);
  EXPECT_THROW(processes.signal(3, SIGUSR1), std::out_of_range);
}

TEST(ProcessesTest, SignalsReachWhatARankHasStarted) {
  Log log;
  Processes processes({shell("sleep 1000 & echo $!; wait")}, log.listener());
  const pid_t grandchild = std::stoi(log.first(0));
  ASSERT_TRUE(runs(grandchild));
  processes.signal(0, SIGTERM);
  EXPECT_TRUE(comes_true([&] { return !runs(grandchild); }));
}

TEST(ProcessesTest, DestructorEndsRanksAndWhatTheyHaveStarted) {
  Log log;
  pid_t rank = 0, ended = 0, grandchild = 0, orphan = 0;
  {
    Processes processes(
        {shell("sleep 1000 & echo $!; wait"), shell("sleep 1000 & echo $!")},
        log.listener());
    rank = processes.pid_of(0);
    ended = processes.pid_of(1);
    grandchild = std::stoi(log.first(0));
    ASSERT_EQ(processes.wait_any(soon()), 1);
    orphan = std::stoi(log.first(1));
    ASSERT_TRUE(runs(rank) && runs(grandchild) && runs(orphan));
  }
  EXPECT_FALSE(exists(rank));
  EXPECT_FALSE(exists(ended));
  EXPECT_TRUE(comes_true([&] { return !runs(grandchild); }));
  EXPECT_TRUE(comes_true([&] { return !runs(orphan); }));
}

TEST(ProcessesTest, DestructorLetsRanksEndByThemselves) {
  Log log;
  {
    Processes processes({shell("trap 'echo bye; exit' TERM; echo ready; "
                               "while :; do sleep 0.01; done")},
                        log.listener());
    ASSERT_EQ(log.first(0), "ready");
  }
  EXPECT_THAT(log.lines(0), ElementsAre("ready", "bye"));
}

// The shell of the rank ends at once.
TEST(ProcessesTest, DestructorLetsWhatARankHasStartedEndByItself) {
  Log log;
  {
    Processes processes({shell("(trap 'sleep 0.3; echo saved; exit' TERM; "
                               "echo ready; while :; do sleep 0.01; done) & "
                               "wait")},
                        log.listener());
    ASSERT_EQ(log.first(0), "ready");
  }
  EXPECT_THAT(log.lines(0), ElementsAre("ready", "saved"));
}

TEST(ProcessesTest, DestructorKillsARankThatIgnoresSigterm) {
  Log log;
  pid_t rank = 0;
  const auto start = Clock::now();
  {
    Processes processes({shell(kIgnoresTerm)}, log.listener(),
                        /*grace_seconds=*/0.1);
    rank = processes.pid_of(0);
    ASSERT_EQ(log.first(0), "ready");
  }
  EXPECT_FALSE(exists(rank));
  EXPECT_GE(Clock::now() - start, milliseconds(100));
}

TEST(ProcessesTest, DestructorEndsAStoppedRankAtOnce) {
  Log log;
  pid_t rank = 0;
  {
    Processes processes({shell(kStays)}, log.listener(),
                        /*grace_seconds=*/1000);
    rank = processes.pid_of(0);
    ASSERT_EQ(log.first(0), "ready");
    processes.signal(0, SIGSTOP);
  }
  EXPECT_FALSE(exists(rank));
}

TEST(ProcessesTest, RanksOutliveTheThreadThatHasMadeTheObject) {
  Log log;
  std::unique_ptr<Processes> processes;
  std::thread([&] {
    processes = std::make_unique<Processes>(
        std::vector<Command>{shell("trap 'exit 7' USR1; echo ready; "
                                   "while :; do sleep 0.01; done")},
        log.listener());
  }).join();
  ASSERT_EQ(log.first(0), "ready");
  processes->signal(0, SIGUSR1);
  ASSERT_TRUE(processes->wait_all(soon()));
  EXPECT_EQ(processes->exit_of(0)->code, 7);
}

// Runs in another process, which the test below starts.
int be_a_parent() {
  Processes processes({shell(kIgnoresTerm), shell(kIgnoresTerm)},
                      [&](int, Stream, std::string_view) {});
  for (int rank = 0; rank < 2; ++rank) {
    std::cout << processes.pid_of(rank) << std::endl;
  }
  processes.wait_all(Clock::time_point::max());
  return 0;
}

TEST(ProcessesTest, NoRankOutlivesAParentThatIsKilled) {
  Log log;
  Processes parent(
      {{"/proc/self/exe", {}, {{"PROCESSES_TEST_ROLE", "parent"}}}},
      log.listener());
  ASSERT_TRUE(comes_true([&] { return log.lines(0).size() == 2; }));
  const pid_t ranks[] = {std::stoi(log.lines(0)[0]),
                         std::stoi(log.lines(0)[1])};
  for (const pid_t rank : ranks) ASSERT_TRUE(runs(rank));
  kill(parent.pid_of(0), SIGKILL);  // not the process group
  for (const pid_t rank : ranks) {
    EXPECT_TRUE(comes_true([&] { return !runs(rank); }));
  }
}

TEST(ProcessesTest, SaysWhichProgramCannotBeStartedAndKillsTheOthers) {
  const auto error_of = [](const Command& command) -> std::string {
    Log log;
    try {
      Processes processes({shell(kIgnoresTerm), command}, log.listener());
    } catch (const std::system_error& error) {
      // This process has no child.
      EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
      EXPECT_EQ(errno, ECHILD);
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of({"/no/such/program"}),
            "cannot start '/no/such/program': No such file or directory");
  EXPECT_EQ(error_of({"/etc/passwd"}),
            "cannot start '/etc/passwd': Permission denied");
  EXPECT_EQ(error_of({"no-such-program"}),
            "cannot start 'no-such-program', which is not in PATH: No such "
            "file or directory");
  EXPECT_EQ(error_of({""}),
            "cannot start '', which is not in PATH: No such file or directory");
}

TEST(ProcessesTest, FindsAPortThatCanBeListenedOn) {
  const int port = free_port();
  EXPECT_GT(port, 1023);
  EXPECT_LT(port, 65536);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(
      bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0)
      << std::strerror(errno);
  EXPECT_EQ(listen(socket, 1), 0);
  close(socket);
}

}  // namespace
}  // namespace gpipe

int main(int argc, char** argv) {
  if (std::getenv("PROCESSES_TEST_ROLE")) return gpipe::be_a_parent();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
