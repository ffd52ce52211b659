// Starts the ranks of a distributed job on this machine, prints their output,
// and ends all of them when one fails. See --help.
//
//   ./bazelw run //tools:launch -- --nproc=4 -- path/to/binary --its_flags
#include <gflags/gflags.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/processes/processes.h"
#include "gpipe/program/working_directory.h"
#include "gpipe/text/refuse.h"
#include "gpipe/text/units.h"

DEFINE_int32(nproc, 1, "Number of ranks on this machine.");
DEFINE_int32(nnodes, 1,
             "Number of machines. Start the launcher on each of them, with the "
             "same --nproc, --master_addr and --master_port.");
DEFINE_int32(node_rank, 0, "Index of this machine, from 0.");
DEFINE_string(master_addr, "",
              "Host name or address of machine 0. '': 127.0.0.1, for one "
              "machine.");
DEFINE_int32(master_port, 0,
             "A free TCP port of machine 0. 0: any port, for one machine.");
DEFINE_bool(tag_output, true,
            "Print the rank before each line, for example "
            "[2].");
DEFINE_double(grace, 5,
              "When a rank has failed: seconds for the others to report and "
              "end. Then they get SIGTERM, and after the same time SIGKILL.");

namespace {

using gpipe::Exit;
using gpipe::Processes;
using gpipe::Stream;
using gpipe::internal::refuse;
using Clock = Processes::Clock;

// The launcher's own exit codes. Otherwise it returns that of the first rank
// that failed.
constexpr int kUsage = 2;
constexpr int kCannotStart = 127;
constexpr int kSignal = 128;  // plus the number of the signal

// Lines of stderr of a failed rank that are repeated at the end.
constexpr std::size_t kLastLines = 20;
constexpr std::size_t kLastLineBytes = 2000;

// ---- The command line

// The command-line arguments before and after the first "--".
struct Words {
  std::vector<std::string> flags, program;
};

Words split(int argc, char** argv) {
  char** const end = argv + argc;
  char** const dashes = std::find_if(
      argv + 1, end, [](const char* word) { return !std::strcmp(word, "--"); });
  return {{argv + 1, dashes}, {dashes == end ? end : dashes + 1, end}};
}

using Flag = gflags::CommandLineFlagInfo;

bool is_ours(const Flag& flag) {
  return flag.filename.find("tools/launch.cc") != std::string::npos;
}

std::optional<Flag> find_flag(const std::string& name) {
  Flag flag;
  const bool is_flag = gflags::GetCommandLineFlagInfo(name.c_str(), &flag);
  if (!is_flag || !is_ours(flag)) return {};
  return flag;
}

std::string type_text(const Flag& flag) {
  if (flag.type == "bool") return "neither true nor false";
  return flag.type == "double" ? "not a number" : "not a whole number";
}

// Sets the flags as gflags does. gflags itself would end the program with exit
// code 1 for a wrong flag, which is an exit code of ranks here.
void read_flags(const std::vector<std::string>& words) {
  for (std::size_t k = 0; k < words.size(); ++k) {
    const std::size_t begin = words[k].find_first_not_of('-');
    if (begin != 1 && begin != 2) {
      refuse("unexpected '", words[k],
             "': the program and its flags come after --, for example launch "
             "--nproc=4 -- program --its_flags");
    }
    const std::size_t equals = std::min(words[k].find('='), words[k].size());
    std::string name = words[k].substr(begin, equals - begin);
    std::optional<std::string> value;
    if (equals < words[k].size()) value = words[k].substr(equals + 1);
    auto flag = find_flag(name);
    if (!flag && !value && name.rfind("no", 0) == 0) {
      flag = find_flag(name.substr(2));
      if (flag && flag->type != "bool") flag.reset();
      name = name.substr(2);
      value = "false";
    }
    if (!flag) {
      refuse("unknown flag '", words[k],
             "': see --help; flags of the program come after --");
    }
    if (!value && flag->type == "bool") value = "true";
    if (!value) {
      if (k + 1 == words.size()) refuse("--", name, " has no value");
      value = words[++k];
    }
    if (gflags::SetCommandLineOption(name.c_str(), value->c_str()).empty()) {
      refuse("--", name, "=", *value, ": '", *value, "' is ", type_text(*flag));
    }
  }
}

void check_flags() {
  if (FLAGS_nproc < 1) refuse("--nproc=", FLAGS_nproc, ": must be at least 1");
  if (FLAGS_nnodes < 1 || FLAGS_nnodes > INT_MAX / FLAGS_nproc) {
    refuse("--nnodes=", FLAGS_nnodes, ": must be at least 1, and at most ",
           INT_MAX / FLAGS_nproc, " with --nproc=", FLAGS_nproc);
  }
  if (FLAGS_node_rank < 0 || FLAGS_node_rank >= FLAGS_nnodes) {
    refuse("--node_rank=", FLAGS_node_rank, ": must be from 0 to ",
           FLAGS_nnodes - 1, ", since --nnodes=", FLAGS_nnodes);
  }
  if (FLAGS_master_port < 0 || FLAGS_master_port > 65535) {
    refuse("--master_port=", FLAGS_master_port,
           ": must be from 1 to 65535, or 0 for any");
  }
  if (!(FLAGS_grace >= 0 && FLAGS_grace <= 1e6)) {
    refuse("--grace=", FLAGS_grace, ": must be from 0 to 1000000 seconds");
  }
  if (FLAGS_nnodes > 1 &&
      (FLAGS_master_addr.empty() || FLAGS_master_port == 0)) {
    refuse("--nnodes=", FLAGS_nnodes,
           " needs --master_addr and --master_port, with the same values on "
           "all machines");
  }
}

bool asks_for_help(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "-h" || word == "-help" || word == "--help";
  });
}

void print_help() {
  std::cout
      << R"(launch: starts a program several times, as the ranks of a distributed job.

  launch [flags] -- program [its flags]

Examples:
  Four ranks on this machine:
    ./bazelw run //tools:launch -- --nproc=4 -- bazel-bin/my/train --epochs=3
  Two machines with eight ranks each; on the first one and on the second one:
    launch --nproc=8 --nnodes=2 --node_rank=0 --master_addr=node0 \
        --master_port=29500 -- ./train
    launch --nproc=8 --nnodes=2 --node_rank=1 --master_addr=node0 \
        --master_port=29500 -- ./train
  The environment of a rank:
    launch --nproc=2 -- env

A program without a slash is searched for in PATH. Under `bazel run`, paths are
relative to the folder in which you typed the command.

Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, as with torchrun. If OMP_NUM_THREADS is not set, each rank gets it
with an equal share of the cores. The stdin of a rank is empty. Its lines are
printed whole, to stdout or stderr. Lines of more than 64 KiB are split.

SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are forwarded to all ranks. When a
rank fails, the others have --grace seconds to end. No rank outlives the
launcher.

Flags:
)";
  std::vector<Flag> flags;
  gflags::GetAllFlags(&flags);
  for (const Flag& flag : flags) {
    if (!is_ours(flag)) continue;
    std::cout << "  --" << flag.name << "="
              << (flag.default_value.empty() ? "''" : flag.default_value)
              << "\n      " << flag.description << "\n";
  }
  std::cout << R"(
Exit codes: 0 if all ranks returned 0; the exit code of the rank that failed
first, or 128 + n if signal n ended it; 2 if a flag is wrong; 127 if the program
cannot be started.
)";
}

// ---- Output

void write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t size = write(fd, text.data() + at, text.size() - at);
    if (size > 0) at += static_cast<std::size_t>(size);
    if (size >= 0 || errno == EINTR) continue;
    if (errno == EAGAIN) {  // another program made the terminal non-blocking
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, -1);
      continue;
    }
    // The reader has ended, as with `| head`. Exits as SIGPIPE would do, which
    // this thread does not receive. The kernel then ends the ranks.
    if (errno == EPIPE) std::_Exit(kSignal + SIGPIPE);
    return;  // ignores other errors: a full disk should not end a training
  }
}

template <typename... Parts>
void say(const Parts&... parts) {
  std::ostringstream text;
  text << "launch: ";
  (text << ... << parts) << "\n";
  write_all(STDERR_FILENO, text.str());
}

// Returns the rank of a process of this machine.
int rank_of(int local_rank) {
  return FLAGS_node_rank * FLAGS_nproc + local_rank;
}

// Prints the output of the ranks and remembers the last lines of stderr.
class Screen {
 public:
  void write(int local_rank, Stream stream, std::string_view line) {
    const int fd = stream == Stream::kStdout ? STDOUT_FILENO : STDERR_FILENO;
    std::string text;
    if (FLAGS_tag_output) {
      const std::string tag = "[" + std::to_string(rank_of(local_rank)) + "]";
      // Six colours that are readable on dark and bright backgrounds.
      text = isatty(fd) ? "\033[3" + std::to_string(1 + local_rank % 6) + "m" +
                              tag + "\033[0m "
                        : tag + " ";
    }
    text.append(line).push_back('\n');
    write_all(fd, text);
    if (stream == Stream::kStdout) return;
    auto& last = last_lines_[local_rank];
    last.emplace_back(line.substr(0, kLastLineBytes));
    if (line.size() > kLastLineBytes) last.back() += " ...";
    if (last.size() > kLastLines) last.pop_front();
  }

  // Returns the last lines of stderr.
  const std::deque<std::string>& last_lines(int local_rank) const {
    return last_lines_[local_rank];
  }

 private:
  std::vector<std::deque<std::string>> last_lines_ =
      std::vector<std::deque<std::string>>(FLAGS_nproc);
};

// ---- The ranks

std::vector<gpipe::Command> commands(const std::vector<std::string>& program) {
  const std::string address =
      FLAGS_master_addr.empty() ? "127.0.0.1" : FLAGS_master_addr;
  const int port =
      FLAGS_master_port == 0 ? gpipe::free_port() : FLAGS_master_port;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<gpipe::Command> commands;
  for (int local_rank = 0; local_rank < FLAGS_nproc; ++local_rank) {
    gpipe::Command command{program[0], {program.begin() + 1, program.end()}};
    command.environment = {
        {"RANK", std::to_string(rank_of(local_rank))},
        {"WORLD_SIZE", std::to_string(FLAGS_nnodes * FLAGS_nproc)},
        {"LOCAL_RANK", std::to_string(local_rank)},
        {"LOCAL_WORLD_SIZE", std::to_string(FLAGS_nproc)},
        {"MASTER_ADDR", address},
        {"MASTER_PORT", std::to_string(port)},
        // Overrides the value of a torchrun that started this launcher. Its
        // store is not for these ranks.
        {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
    if (!std::getenv("OMP_NUM_THREADS")) {
      command.environment.emplace_back(
          "OMP_NUM_THREADS", std::to_string(std::max(1, cores / FLAGS_nproc)));
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

constexpr std::array<int, 4> kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// Forwards signals to the ranks, on a thread. They must be blocked on all
// threads.
class Forwarder {
 public:
  explicit Forwarder(Processes& processes)
      : thread_([this, &processes] {
          sigset_t signals;
          sigemptyset(&signals);
          for (const int number : kForwarded) sigaddset(&signals, number);
          for (;;) {
            int number = 0;
            if (sigwait(&signals, &number) != 0) continue;
            if (is_done_) return;
            if (is_ignored(number)) continue;
            say("passes signal ", number, " (", strsignal(number),
                ") on to all ranks");
            processes.signal_all(number);
          }
        }) {}
  ~Forwarder() {
    is_done_ = true;
    pthread_kill(thread_.native_handle(), kForwarded[0]);
    thread_.join();
  }

 private:
  // Returns whether the parent process ignores the signal, as nohup does with
  // SIGHUP.
  static bool is_ignored(int number) {
    struct sigaction action;
    return sigaction(number, nullptr, &action) == 0 &&
           action.sa_handler == SIG_IGN;
  }

  std::atomic<bool> is_done_{false};
  std::thread thread_;
};

std::string running(const Processes& processes) {
  std::string text;
  for (int k = 0; k < processes.size(); ++k) {
    if (processes.exit_of(k)) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(rank_of(k));
  }
  return text;
}

std::string how(const Exit& exit) {
  return (exit.signal != 0 ? "by " : "with ") + to_string(exit) + ", after " +
         gpipe::seconds_text(exit.seconds);
}

// Blocks until all ranks have ended. Returns the first one that failed, or -1.
int wait_for(Processes& processes) {
  const auto grace = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(FLAGS_grace));
  constexpr std::array<int, 2> kMeans = {SIGTERM, SIGKILL};
  std::size_t means = 0;
  auto deadline = Clock::time_point::max();
  int first = -1;
  for (;;) {
    const std::optional<int> ended = processes.wait_any(deadline);
    if (ended) {
      if (first >= 0 || processes.exit_of(*ended)->ok()) continue;
      first = *ended;
      deadline = Clock::now() + grace;
      say("rank ", rank_of(first), " failed ", how(*processes.exit_of(first)),
          "; others have ", gpipe::seconds_text(FLAGS_grace), " to end");
      continue;
    }
    const std::string late = running(processes);
    if (late.empty()) return first;
    say("sends signal ", kMeans[means], " (", strsignal(kMeans[means]),
        ") to ranks that still run: ", late);
    processes.signal_all(kMeans[means]);
    deadline = ++means < kMeans.size() ? Clock::now() + grace
                                       : Clock::time_point::max();
  }
}

// Prints what is known about a failure, with the cause last.
int report(int first, const std::vector<Exit>& exits, const Screen& screen) {
  for (std::size_t k = 0; k < exits.size(); ++k) {
    if (static_cast<int>(k) == first || exits[k].ok()) continue;
    say("rank ", rank_of(static_cast<int>(k)), " failed, too, ", how(exits[k]));
  }
  const Exit& exit = exits[first];
  const auto& lines = screen.last_lines(first);
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  say("rank ", rank_of(first), " failed first, ", how(exit), ". ",
      lines.empty() ? "It wrote nothing to stderr." : "Its last lines:", text);
  if (exit.signal != 0) return kSignal + exit.signal;
  return exit.code > 0 ? exit.code : 1;
}

int launch(const std::vector<std::string>& program) {
  Screen screen;
  std::vector<Exit> exits;
  int first = -1;
  {
    Processes processes(
        commands(program),
        [&](int local_rank, Stream stream, std::string_view line) {
          screen.write(local_rank, stream, line);
        },
        FLAGS_grace);
    const Forwarder forwarder(processes);
    first = wait_for(processes);
    for (int k = 0; k < processes.size(); ++k) {
      exits.push_back(*processes.exit_of(k));
    }
  }  // from here on no other thread prints
  return first < 0 ? 0 : report(first, exits, screen);
}

void block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : kForwarded) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // If SIGCHLD were ignored, exit codes would be lost.
  std::signal(SIGCHLD, SIG_DFL);
}

}  // namespace

int main(int argc, char** argv) {
  const Words words = split(argc, argv);
  if (asks_for_help(words.flags)) {
    print_help();
    return 0;
  }
  try {
    read_flags(words.flags);
    check_flags();
    if (words.program.empty()) {
      refuse(
          "no program: it comes after --, for example launch --nproc=4 -- "
          "program --its_flags");
    }
    gpipe::enter_working_directory();
    block_signals();
    return launch(words.program);
  } catch (const std::invalid_argument& error) {
    say(error.what());
    return kUsage;
  } catch (const std::system_error& error) {
    const std::string& name = words.program[0];
    const bool is_here = error.code() == std::errc::no_such_file_or_directory &&
                         name.find('/') == std::string::npos &&
                         access(name.c_str(), F_OK) == 0;
    say(error.what(), is_here ? "; the file in this folder is ./" + name : "");
    return kCannotStart;
  }
}
