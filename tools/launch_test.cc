// Tests of tools/launch. The environment variable LAUNCH contains its path.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpipe/base/processes.h"
#include "gpipe/testing/process.h"

namespace gpipe {
namespace {

using testing::comes_true;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using testing::runs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

using Clock = Processes::Clock;
using Strings = std::vector<std::string>;

// Returns a deadline for events that take milliseconds. Only a failure waits so
// long.
Clock::time_point soon() { return Clock::now() + std::chrono::seconds(30); }

// Returns an absolute path, since tests run the launcher in other folders.
std::string launcher() {
  const char* const path = std::getenv("LAUNCH");
  char absolute[PATH_MAX] = "";
  EXPECT_TRUE(path && realpath(path, absolute))
      << "LAUNCH must be the path of tools/launch";
  return absolute;
}

// Returns a command that runs the launcher with the arguments `words`. `before`
// precedes the launcher: NAME=value, or a program that runs the rest.
Command command(const Strings& words, const Strings& before) {
  // The parent of this test may ignore some signals.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    std::signal(number, SIG_DFL);
  }
  Command command{"/usr/bin/env",
                  {"-u", "OMP_NUM_THREADS", "-u", "BUILD_WORKING_DIRECTORY"}};
  auto& all = command.arguments;
  all.insert(all.end(), before.begin(), before.end());
  all.push_back(launcher());
  all.insert(all.end(), words.begin(), words.end());
  return command;
}

// A running launcher and its output.
class Launch {
 public:
  // The arguments are those of command().
  explicit Launch(const Strings& words, const Strings& before = {})
      : processes_(
            {command(words, before)},
            [this](int, Stream stream, std::string_view line) {
              std::lock_guard<std::mutex> lock(mutex_);
              (stream == Stream::kStdout ? out_ : err_).emplace_back(line);
            },
            /*grace_seconds=*/5,
            [this](int, Stream, std::string_view text) {
              std::lock_guard<std::mutex> lock(mutex_);
              shown_.emplace_back(text);
            }) {}

  // Waits for the launcher to end. Returns its exit code, 1000 + n if signal n
  // ended it, or -1 if it still runs.
  int code() {
    EXPECT_TRUE(processes_.wait_all(soon()));
    const auto exit = processes_.exit_of(0);
    if (!exit) return -1;
    return exit->signal != 0 ? 1000 + exit->signal : exit->code;
  }

  Strings out() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return out_;
  }
  // Returns the texts that ended in \r.
  Strings shown() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return shown_;
  }
  Strings err() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return err_;
  }
  bool writes(std::size_t lines) const {
    return comes_true([&] { return out().size() >= lines; });
  }

  bool complains(const std::string& text) const {
    return comes_true([&] {
      for (const std::string& line : err()) {
        if (line.find(text) != std::string::npos) return true;
      }
      return false;
    });
  }

  void signal(int number) { processes_.signal(0, number); }

 private:
  mutable std::mutex mutex_;
  Strings out_, err_, shown_;
  Processes processes_;  // last member: its thread uses the other members
};

// Returns arguments with `flags` and a shell script that all ranks run.
Strings script(Strings flags, const std::string& text) {
  for (const char* word : {"--", "sh", "-c"}) flags.push_back(word);
  flags.push_back(text);
  return flags;
}

std::string joined(const Strings& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string share_of_cores(int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::to_string(std::max(1, cores / ranks));
}

TEST(LaunchTest, TellsEachRankWhichItIs) {
  Launch launch({"--nproc=2", "--", "env"});
  ASSERT_EQ(launch.code(), 0) << joined(launch.err());
  EXPECT_THAT(
      launch.out(),
      IsSupersetOf({"[0] RANK=0", "[0] LOCAL_RANK=0", "[0] WORLD_SIZE=2",
                    "[0] LOCAL_WORLD_SIZE=2", "[0] MASTER_ADDR=127.0.0.1",
                    "[1] RANK=1", "[1] LOCAL_RANK=1", "[1] WORLD_SIZE=2",
                    "[1] LOCAL_WORLD_SIZE=2", "[1] MASTER_ADDR=127.0.0.1"}));
  EXPECT_THAT(launch.out(),
              Contains("[1] OMP_NUM_THREADS=" + share_of_cores(2)));
  std::set<std::string> ports;
  for (const std::string& line : launch.out()) {
    const std::size_t at = line.find("MASTER_PORT=");
    if (at != std::string::npos) ports.insert(line.substr(at + 12));
  }
  ASSERT_EQ(ports.size(), 1u) << "all ranks get the same";
  EXPECT_GT(std::stoi(*ports.begin()), 1023);
  EXPECT_THAT(launch.err(), IsEmpty());
}

TEST(LaunchTest, CountsTheRanksOfAllMachines) {
  Launch launch({"--nproc", "2", "--nnodes=3", "-node_rank=2",
                 "--master_addr=node0", "--master_port=1234", "--", "env"});
  ASSERT_EQ(launch.code(), 0) << joined(launch.err());
  EXPECT_THAT(launch.out(),
              IsSupersetOf({"[4] RANK=4", "[4] LOCAL_RANK=0", "[5] RANK=5",
                            "[5] LOCAL_RANK=1", "[5] WORLD_SIZE=6",
                            "[5] LOCAL_WORLD_SIZE=2", "[5] MASTER_ADDR=node0",
                            "[5] MASTER_PORT=1234"}));
}

TEST(LaunchTest, LeavesANumberOfThreadsAlone) {
  Launch launch(script({}, "echo $OMP_NUM_THREADS"), {"OMP_NUM_THREADS=77"});
  EXPECT_EQ(launch.code(), 0);
  EXPECT_THAT(launch.out(), ElementsAre("[0] 77"));
}

TEST(LaunchTest, RanksKeepFreedMemoryUnlessTheUserDecides) {
  const Strings program =
      script({}, "echo $MALLOC_TRIM_THRESHOLD_ $MALLOC_MMAP_THRESHOLD_");
  Launch launch(program), other(program, {"MALLOC_TRIM_THRESHOLD_=7"});
  EXPECT_EQ(launch.code(), 0);
  EXPECT_THAT(launch.out(), ElementsAre("[0] 2147483647 33554432"));
  EXPECT_EQ(other.code(), 0);
  EXPECT_THAT(other.out(), ElementsAre("[0] 7"));
}

TEST(LaunchTest, DoesNotLetAnOuterTorchrunSpeakOfItsStore) {
  Launch launch(script({}, "echo $TORCHELASTIC_USE_AGENT_STORE"),
                {"TORCHELASTIC_USE_AGENT_STORE=True"});
  EXPECT_EQ(launch.code(), 0);
  EXPECT_THAT(launch.out(), ElementsAre("[0] False"));
}

TEST(LaunchTest, KeepsStdoutAndStderrApart) {
  Launch launch(script({"--nproc=2"}, "echo out; echo err >&2"));
  EXPECT_EQ(launch.code(), 0);
  EXPECT_THAT(launch.out(), UnorderedElementsAre("[0] out", "[1] out"));
  EXPECT_THAT(launch.err(), UnorderedElementsAre("[0] err", "[1] err"));
}

TEST(LaunchTest, RunsWithClosedStreams) {
  const Strings program = script({}, "echo out; echo err >&2");
  Launch no_out(program, {"sh", "-c", "exec \"$@\" >&-", "sh"}),
      no_err(program, {"sh", "-c", "exec \"$@\" 2>&-", "sh"}),
      neither(program, {"sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"});
  EXPECT_EQ(no_out.code(), 0);
  EXPECT_THAT(no_out.out(), IsEmpty());
  EXPECT_THAT(no_out.err(), ElementsAre("[0] err"));
  EXPECT_EQ(no_err.code(), 0);
  EXPECT_THAT(no_err.out(), ElementsAre("[0] out"));
  EXPECT_THAT(no_err.err(), IsEmpty());
  EXPECT_EQ(neither.code(), 0);
}

TEST(LaunchTest, WritesLinesAsTheyAreWithoutTags) {
  for (const char* flag : {"--notag_output", "--tag_output=false"}) {
    Launch launch(script({flag}, "echo out; printf ' no end'"));
    EXPECT_EQ(launch.code(), 0);
    EXPECT_THAT(launch.out(), ElementsAre("out", " no end"));
  }
}

TEST(LaunchTest, ColoursTagsOnATerminalOnly) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
    GTEST_SKIP() << "no terminal here";
  }
  // An open other end keeps the output until it is read.
  const std::string path = ptsname(terminal);
  const int other_end = open(path.c_str(), O_RDWR | O_NOCTTY);
  Launch launch(script({}, "echo out; echo err >&2"),
                {"sh", "-c", "exec \"$@\" > " + path, "sh"});
  EXPECT_EQ(launch.code(), 0);
  char text[100];
  const ssize_t size = read(terminal, text, sizeof(text));
  EXPECT_EQ(std::string(text, size), "\033[31m[0]\033[0m out\r\n");
  EXPECT_THAT(launch.err(), ElementsAre("[0] err"));
  close(other_end);
  close(terminal);
}

TEST(LaunchTest, ReturnsTheExitCodeOfTheRankThatFailed) {
  Launch launch(script({"--nproc=3"}, "[ $RANK = 1 ] && exit 42; exit 0"));
  EXPECT_EQ(launch.code(), 42);
  EXPECT_THAT(launch.err().back(),
              StartsWith("launch: rank 1 failed first, with exit code 42, "
                         "after "));
  EXPECT_THAT(launch.err().back(), HasSubstr(" It wrote nothing to stderr."));
}

TEST(LaunchTest, TellsASignalAsAShellDoes) {
  Launch launch(script({"--nproc=2"}, "[ $RANK = 1 ] && kill -9 $$; exit 0"));
  EXPECT_EQ(launch.code(), 128 + 9);
  EXPECT_THAT(launch.err().back(),
              StartsWith("launch: rank 1 failed first, by signal 9 (Killed), "
                         "after "));
}

TEST(LaunchTest, EndsWithTheLastLinesOfTheRankThatFailedFirst) {
  // Redirects both streams to one, as on a screen.
  Launch launch(script({"--nproc=3", "--grace=0.2"},
                       "case $RANK in "
                       "1) echo 'not this'; seq 1 25 >&2; exit 3;; "
                       "2) trap 'echo too late >&2; exit 4' TERM; "
                       "   while :; do sleep 0.01; done;; "
                       "esac"),
                {"sh", "-c", "exec \"$@\" 2>&1", "sh"});
  EXPECT_EQ(launch.code(), 3);
  const Strings lines = launch.out();
  ASSERT_GT(lines.size(), 21u);
  const Strings end(lines.end() - 21, lines.end());
  EXPECT_THAT(end[0], StartsWith("launch: rank 1 failed first, with exit code "
                                 "3, after "));
  EXPECT_THAT(end[0], EndsWith(". Its last lines:"));
  for (int k = 1; k <= 20; ++k) {
    EXPECT_EQ(end[k], "  " + std::to_string(5 + k));
  }
}

TEST(LaunchTest, BlamesTheRankThatOthersNameAndNotTheOneThatExitsFirst) {
  // Rank 2 waits for a signal, so that it ends after the others. They call it
  // the cause, in a chain.
  Launch launch(script(
      {"--nproc=3", "--grace=1000"},
      "case $RANK in "
      "0) echo 'train: rank 1 has died: closed [noticed by rank 0]' >&2; "
      "   exit 1;; "
      "1) echo 'train: rank 2 has failed: no row 7 (this is rank 1)' >&2; "
      "   exit 1;; "
      "2) trap 'echo train: no row 7 >&2; exit 3' USR1; echo $$; "
      "   while :; do sleep 0.01; done;; "
      "esac"));
  ASSERT_TRUE(launch.writes(1));
  ASSERT_TRUE(launch.complains("others have 1000 s to end"));
  const std::string line = launch.out()[0];
  kill(std::stoi(line.substr(line.find(' ') + 1)), SIGUSR1);
  EXPECT_EQ(launch.code(), 3);
  const Strings err = launch.err();
  ASSERT_GE(err.size(), 2u);
  EXPECT_THAT(err[err.size() - 2],
              StartsWith("launch: rank 2 failed first, with exit code 3"));
  EXPECT_EQ(err.back(), "  train: no row 7");
}

TEST(LaunchTest, DoesNotBlameARankThatItHasEndedItself) {
  Launch launch(script({"--nproc=2", "--grace=0.1"},
                       "[ $RANK = 1 ] && exec sleep 1000; "
                       "echo 'rank 1 is frozen: nothing was heard' >&2; "
                       "exit 4"));
  EXPECT_EQ(launch.code(), 4);
  EXPECT_THAT(joined(launch.err()),
              HasSubstr("launch: rank 0 failed first, with exit code 4"));
}

TEST(LaunchTest, LetsTheOthersEndByThemselves) {
  // Rank 0 has enough time to end, and then prints "done".
  const std::string text =
      "[ $RANK = 1 ] && exit 3; "
      "trap 'echo terminated' TERM; sleep 0.2; echo done; exit 5";
  Launch launch(script({"--nproc=2", "--grace=1000"}, text));
  EXPECT_EQ(launch.code(), 3);
  EXPECT_THAT(launch.out(), ElementsAre("[0] done"));
  const std::string err = joined(launch.err());
  EXPECT_THAT(err, HasSubstr("others have 1000 s to end\n"));
  EXPECT_THAT(err, HasSubstr("launch: rank 0 failed, too, with exit code 5"));
}

TEST(LaunchTest, TerminatesAndThenKillsWhoDoesNotEnd) {
  Launch launch(script({"--nproc=3", "--grace=0.5", "--notag_output"},
                       "[ $RANK = 0 ] && trap '' TERM; "
                       "[ $RANK = 1 ] && echo $$ || echo 0; exec sleep 1000"));
  ASSERT_TRUE(launch.writes(3));
  for (const std::string& line : launch.out()) {
    if (line != "0") kill(std::stoi(line), SIGABRT);
  }
  EXPECT_EQ(launch.code(), 128 + SIGABRT);
  const std::string err = joined(launch.err());
  EXPECT_THAT(err, HasSubstr("launch: sends signal 15 (Terminated) to ranks "
                             "that still run: 0, 2\n"
                             "launch: sends signal 9 (Killed) to ranks that "
                             "still run: 0\n"));
  EXPECT_THAT(err, HasSubstr("launch: rank 0 failed, too, by signal 9"));
  EXPECT_THAT(err, HasSubstr("launch: rank 2 failed, too, by signal 15"));
  EXPECT_THAT(launch.err().back(), StartsWith("launch: rank 1 failed first"));
}

TEST(LaunchTest, DoesNotEndOthersWhenARankIsDone) {
  Launch launch(script({"--nproc=2", "--grace=0"},
                       "[ $RANK = 1 ] && exit 0; sleep 0.2; echo done"));
  EXPECT_EQ(launch.code(), 0);
  EXPECT_THAT(launch.out(), ElementsAre("[0] done"));
  EXPECT_THAT(launch.err(), IsEmpty());
}

TEST(LaunchTest, PassesSignalsOnToAllRanks) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Launch launch(script({"--nproc=2"},
                         "trap 'echo got it; exit 0' INT TERM HUP QUIT; "
                         "echo ready; while :; do sleep 0.01; done"));
    ASSERT_TRUE(launch.writes(2));
    launch.signal(number);
    EXPECT_EQ(launch.code(), 0);
    EXPECT_THAT(launch.out(), UnorderedElementsAre("[0] ready", "[1] ready",
                                                   "[0] got it", "[1] got it"));
  }
}

TEST(LaunchTest, KeepsIgnoringWhatItWasToldToIgnore) {
  Launch launch(
      script({}, "trap 'exit 3' INT; echo ready; while :; do sleep 0.01; done"),
      {"sh", "-c", "trap '' HUP; exec \"$@\"", "sh"});
  ASSERT_TRUE(launch.writes(1));
  launch.signal(SIGHUP);
  launch.signal(SIGINT);
  EXPECT_EQ(launch.code(), 3);
  const std::string err = joined(launch.err());
  EXPECT_THAT(err, HasSubstr("launch: passes signal 2 (Interrupt) on to all "
                             "ranks\n"));
  EXPECT_THAT(err, Not(HasSubstr("signal 1 ")));
}

TEST(LaunchTest, PassesSignalsOnWhileStderrIsBlocked) {
  // The stderr of the launcher is a full pipe until the rank has the signal.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  char page[4096] = {};
  while (write(ends[1], page, sizeof page) > 0) {
  }
  const std::string path =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(ends[1]);
  Launch launch(script({},
                       "exec 2>/dev/null; "
                       "trap 'echo got it; exit 0' TERM; echo ready; "
                       "while :; do sleep 0.01; done"),
                {"sh", "-c", "exec \"$@\" 2> " + path, "sh"});
  ASSERT_TRUE(launch.writes(1));
  launch.signal(SIGTERM);
  EXPECT_TRUE(launch.writes(2));
  EXPECT_THAT(launch.out(), ElementsAre("[0] ready", "[0] got it"));
  close(ends[1]);
  fcntl(ends[0], F_SETFL, 0);  // reads until the launcher has ended
  std::string text;
  for (ssize_t size; (size = read(ends[0], page, sizeof page)) > 0;) {
    text.append(page, size);
  }
  close(ends[0]);
  EXPECT_EQ(launch.code(), 0);
  EXPECT_EQ(text.substr(text.find_last_of('\0') + 1),
            "launch: passes signal 15 (Terminated) on to all ranks\n");
}

// Kills a launcher of two ranks whose `text` prints a process each, and expects
// that both processes end.
void expect_ended_with_launcher(const std::string& text) {
  Launch launch(script({"--nproc=2", "--notag_output"}, text));
  ASSERT_TRUE(launch.writes(2));
  const pid_t others[] = {std::stoi(launch.out()[0]),
                          std::stoi(launch.out()[1])};
  for (const pid_t each : others) ASSERT_TRUE(runs(each));
  launch.signal(SIGKILL);
  EXPECT_EQ(launch.code(), 1000 + SIGKILL);
  for (const pid_t each : others) {
    EXPECT_TRUE(comes_true([&] { return !runs(each); }));
    kill(each, SIGKILL);
  }
}

TEST(LaunchTest, NoRankOutlivesIt) {
  expect_ended_with_launcher("trap '' TERM; echo $$; exec sleep 1000");
}

// The grandchild is in the background of a shell, and its parent ends first.
TEST(LaunchTest, NoProcessOfARankOutlivesIt) {
  expect_ended_with_launcher(
      "(trap '' TERM; exec sleep 1000) & echo $!; "
      "[ $RANK = 0 ] && exit 0; wait");
}

TEST(LaunchTest, ShowsProgressAtOnce) {
  // A progress bar ends each text with \r, or begins with it.
  for (const char* const text : {"1 of 2\\r", "\\r1 of 2"}) {
    Launch launch(script({}, std::string("printf '") + text +
                                 "'; trap 'printf \"\\r2 of 2\\n\"; exit 0' "
                                 "TERM; while :; do sleep 0.01; done"));
    EXPECT_TRUE(comes_true([&] { return !launch.shown().empty(); })) << text;
    launch.signal(SIGTERM);
    EXPECT_EQ(launch.code(), 0);
    EXPECT_THAT(launch.shown(), ElementsAre("[0] 1 of 2")) << text;
    EXPECT_THAT(launch.out(), ElementsAre("[0] 2 of 2")) << text;
  }
}

TEST(LaunchTest, EndsWithItsReader) {
  Launch launch({"--notag_output", "--", "yes"},
                {"sh", "-c", "\"$@\" | head -1; echo end", "sh"});
  EXPECT_EQ(launch.code(), 0);
  EXPECT_THAT(launch.out(), ElementsAre("y", "end"));
}

TEST(LaunchTest, StartsAllRanksAgainAfterAFailure) {
  // Rank 1 fails in its first two starts.
  Launch launch(script({"--nproc=2", "--restarts=3"},
                       "echo start $TORCHELASTIC_RESTART_COUNT; "
                       "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] "
                       "&& kill -9 $$; exit 0"));
  EXPECT_EQ(launch.code(), 0);
  EXPECT_THAT(launch.out(), UnorderedElementsAre("[0] start 0", "[1] start 0",
                                                 "[0] start 1", "[1] start 1",
                                                 "[0] start 2", "[1] start 2"));
  Strings starts;
  for (const std::string& line : launch.err()) {
    if (line.find("starts all") != line.npos) starts.push_back(line);
  }
  EXPECT_THAT(starts,
              ElementsAre("launch: starts all ranks again, restart 1 of 3",
                          "launch: starts all ranks again, restart 2 of 3"));
}

TEST(LaunchTest, GivesUpAfterTheLastRestart) {
  Launch launch(
      script({"--restarts=1"}, "exit $((7 + TORCHELASTIC_RESTART_COUNT))"));
  EXPECT_EQ(launch.code(), 8);
  EXPECT_EQ(launch.err().back(),
            "launch: gives up after 1 restart (--restarts)");
}

TEST(LaunchTest, DoesNotStartRanksAgainThatItWasToldToEnd) {
  Launch launch(script({"--nproc=2", "--restarts=3"},
                       "trap 'exit 5' TERM; echo ready; "
                       "while :; do sleep 0.01; done"));
  ASSERT_TRUE(launch.writes(2));
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.code(), 5);
  EXPECT_EQ(launch.out().size(), 2u);
  EXPECT_EQ(launch.err().back(),
            "launch: does not start the ranks again after a signal to the "
            "launcher");
}

TEST(LaunchTest, SaysInOneLineWhatCannotBeStarted) {
  Launch launch({"--nproc=2", "--", "/no/such/program", "--flag"});
  EXPECT_EQ(launch.code(), 127);
  EXPECT_THAT(launch.err(),
              ElementsAre("launch: cannot start '/no/such/program': No such "
                          "file or directory"));
}

// A folder that contains an executable file "program".
class Folder {
 public:
  Folder() {
    path_ = ::testing::TempDir() + "/launch_test.XXXXXX";
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    std::ofstream(file()) << "#!/bin/sh\npwd\n";
    EXPECT_EQ(chmod(file().c_str(), 0700), 0);
  }
  ~Folder() {
    unlink(file().c_str());
    rmdir(path_.c_str());
  }
  std::string path() const {
    char real[PATH_MAX] = "";
    return realpath(path_.c_str(), real) ? real : "";
  }

 private:
  std::string file() const { return path_ + "/program"; }
  std::string path_;
};

TEST(LaunchTest, RunsInTheFolderWhereBazelRunWasTyped) {
  const Folder folder;
  Launch launch({"--notag_output", "--", "./program"},
                {"BUILD_WORKING_DIRECTORY=" + folder.path()});
  EXPECT_EQ(launch.code(), 0) << joined(launch.err());
  EXPECT_THAT(launch.out(), ElementsAre(folder.path()));
  Launch lost({"--", "./program"}, {"BUILD_WORKING_DIRECTORY=/no/such"});
  EXPECT_EQ(lost.code(), 2);
  EXPECT_THAT(
      lost.err(),
      ElementsAre("launch: BUILD_WORKING_DIRECTORY is '/no/such', which "
                  "cannot be entered: No such file or directory"));
}

TEST(LaunchTest, KnowsWhatAMissingSlashMeans) {
  const Folder folder;
  // Sets PATH because Bazel adds "." to that of a test.
  Launch launch(
      {"--", "program"},
      {"PATH=/usr/bin:/bin", "BUILD_WORKING_DIRECTORY=" + folder.path()});
  EXPECT_EQ(launch.code(), 127);
  EXPECT_THAT(launch.err(),
              ElementsAre("launch: cannot start 'program', which is not in "
                          "PATH: No such file or directory; the file in this "
                          "folder is ./program"));
}

TEST(LaunchTest, RefusesFlagsThatHaveNoSense) {
  const auto error_of = [](Strings flags) {
    for (const char* word : {"--", "echo", "started"}) flags.push_back(word);
    Launch launch(flags);
    EXPECT_EQ(launch.code(), 2);
    EXPECT_THAT(launch.out(), IsEmpty());
    return joined(launch.err());
  };
  // gflags has a flag of the second name, but the launcher must reject it.
  for (const std::string flag : {"--nprocs=2", "--version", "--nonproc"}) {
    EXPECT_EQ(error_of({flag}),
              "launch: unknown flag '" + flag +
                  "': see --help; flags of the program come after --\n");
  }
  EXPECT_EQ(
      error_of({"program"}),
      "launch: unexpected 'program': the program and its flags come after "
      "--, for example launch --nproc=4 -- program --its_flags\n");
  EXPECT_EQ(error_of({"--nproc"}), "launch: --nproc has no value\n");
  EXPECT_EQ(error_of({"--nnodes=2", "--node_rank=2"}),
            "launch: --node_rank=2: must be from 0 to 1, since --nnodes=2\n");
  const std::pair<std::string, std::string> wrong[] = {
      {"--nproc=x", "'x' is not a whole number of 32 bits"},
      {"--nproc=99999999999", "'99999999999' is not a whole number of 32 bits"},
      {"--grace=x", "'x' is not a number"},
      {"--tag_output=x", "'x' is neither true nor false"},
      {"--nproc=0", "must be at least 1"},
      {"--nnodes=0",
       "must be at least 1, and at most 2147483647 with --nproc=1"},
      {"--master_port=65536", "must be from 1 to 65535, or 0 for any"},
      {"--grace=-1", "must be from 0 to 1000000 seconds"},
      {"--restarts=-1", "must be at least 0"}};
  for (const auto& [flag, why] : wrong) {
    EXPECT_EQ(error_of({flag}), "launch: " + flag + ": " + why + "\n");
  }
  for (const char* flag : {"--master_addr=node0", "--master_port=1234"}) {
    EXPECT_EQ(error_of({"--nnodes=2", flag}),
              "launch: --nnodes=2 needs --master_addr and --master_port, with "
              "the same values on all machines\n");
  }
}

TEST(LaunchTest, NeedsAProgram) {
  for (const Strings& words : {Strings{}, Strings{"--nproc=2", "--"}}) {
    Launch launch(words);
    EXPECT_EQ(launch.code(), 2);
    EXPECT_THAT(
        launch.err(),
        ElementsAre("launch: no program: it comes after --, for example "
                    "launch --nproc=4 -- program --its_flags"));
  }
}

TEST(LaunchTest, HelpsOnlyIfItIsItselfAsked) {
  for (const char* flag : {"--help", "-h"}) {
    Launch launch({"--nproc=2", flag});
    EXPECT_EQ(launch.code(), 0);
    EXPECT_THAT(launch.err(), IsEmpty());
    EXPECT_THAT(launch.out(), Contains("  --nproc=1"));
    EXPECT_THAT(launch.out(), Contains("    launch --nproc=2 -- env"));
  }
  Launch other({"--", "echo", "--help", "--", "-h"});
  EXPECT_EQ(other.code(), 0);
  EXPECT_THAT(other.out(), ElementsAre("[0] --help -- -h"));
}

}  // namespace
}  // namespace gpipe
