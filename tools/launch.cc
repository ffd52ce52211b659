// Starts the ranks of a distributed job on this machine, prints their output,
// and ends all of them, or starts all again, when one fails. See --help.
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
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/base/processes.h"
#include "gpipe/base/program.h"
#include "gpipe/base/text.h"

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
DEFINE_int32(restarts, 0,
             "When a rank has failed: how often all ranks are started again, "
             "after all have ended. The program itself must go on from its "
             "last run checkpoint, as examples:train does with --run_dir.");

namespace {

using gpipe::Exit;
using gpipe::Processes;
using gpipe::Stream;
using gpipe::internal::refuse;
using Clock = Processes::Clock;
using Flag = gflags::CommandLineFlagInfo;

// The launcher's own exit codes. Otherwise it returns that of the rank that
// failed first.
constexpr int kUsage = 2;
constexpr int kCannotStart = 127;

// The launcher adds the number of a signal to this exit code.
constexpr int kSignal = 128;

// ---- The command line

// A part of the path of the file that defines the launcher's flags.
constexpr char kFolder[] = "tools/launch";

std::optional<Flag> find_flag(const std::string& name) {
  Flag flag;
  const bool is_flag = gflags::GetCommandLineFlagInfo(name.c_str(), &flag);
  if (!is_flag || flag.filename.find(kFolder) == std::string::npos) return {};
  return flag;
}

std::string type_text(const Flag& flag) {
  if (flag.type == "bool") return "neither true nor false";
  return flag.type == "double" ? "not a number"
                               : "not a whole number of 32 bits";
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
  if (FLAGS_restarts < 0) {
    refuse("--restarts=", FLAGS_restarts, ": must be at least 0");
  }
  if (FLAGS_nnodes > 1 &&
      (FLAGS_master_addr.empty() || FLAGS_master_port == 0)) {
    refuse("--nnodes=", FLAGS_nnodes,
           " needs --master_addr and --master_port, with the same values on "
           "all machines");
  }
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
  A run that goes on after up to three failures:
    launch --nproc=4 --restarts=3 -- ./train --distributed --run_dir=/runs/1
  The environment of a rank:
    launch --nproc=2 -- env

A program without a slash is searched for in PATH. Under `bazel run`, paths are
relative to the folder in which you typed the command.

Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, as with torchrun. If OMP_NUM_THREADS is not set, each rank gets it
with an equal share of the cores. If the environment sets no thresholds of
glibc's malloc, MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ make it keep
what a step frees for the next step. The stdin of a rank is empty. Its lines are
printed whole, to stdout or stderr. Lines of more than 64 KiB are split. A
progress bar, whose texts a \r separates, is printed as it comes.

SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are forwarded to all ranks, which
are not started again after that. The launcher waits for them, however long they
take, for example to write a run checkpoint; SIGKILL ends it and them. When a rank fails, the others have --grace
seconds to end. No rank outlives the launcher, even if that is killed, nor do
processes that a rank starts, unless they leave its process group.
TORCHELASTIC_RESTART_COUNT tells a rank how often it was started again. With
several machines, each launcher starts its own ranks again: give all of them the
same --restarts.

Flags:
)" << gpipe::flags_text(kFolder)
      << R"(
Exit codes: 0 if all ranks returned 0; the exit code of the rank that failed
first in the last start, or 128 + n if signal n ended it; 2 if a flag is wrong;
127 if the program cannot be started.
)";
}

// Sets the flags before the first "--" and returns the words after it: the
// program of the ranks and its arguments. For --help, prints the help and
// returns nothing. Throws std::invalid_argument if a flag is wrong or there is
// no program.
std::vector<std::string> read_command_line(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const std::vector<std::string> flags(words.begin(), dashes);
  for (const char* help : {"-h", "-help", "--help"}) {
    if (std::count(flags.begin(), flags.end(), help) == 0) continue;
    print_help();
    return {};
  }
  read_flags(flags);
  check_flags();
  if (words.end() - dashes < 2) {
    refuse(
        "no program: it comes after --, for example launch --nproc=4 -- "
        "program --its_flags");
  }
  return {dashes + 1, words.end()};
}

// ---- Output

// Lines of stderr of a failed rank that are repeated at the end.
constexpr std::size_t kLastLines = 20;
constexpr std::size_t kLastLineBytes = 2000;

// Writes all of `text`. Ends the launcher if its reader has ended.
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
  // Prints a part of an unfinished line. The next output replaces it on a
  // terminal.
  void show(int local_rank, Stream stream, std::string_view text);

  void write(int local_rank, Stream stream, std::string_view line);

  // Returns the rank that this rank has called the cause of its failure on
  // stderr, as a gpipe::PeerError does; -1 if there is none.
  int rank_at_fault(int local_rank) const { return at_fault_[local_rank]; }

  // Returns the last lines of stderr.
  const std::deque<std::string>& last_lines(int local_rank) const {
    return last_lines_[local_rank];
  }

 private:
  void print(int local_rank, Stream stream, std::string_view line, char end);

  bool shows_progress_ = false;  // since the last line
  std::vector<int> at_fault_ = std::vector<int>(FLAGS_nproc, -1);
  std::vector<std::deque<std::string>> last_lines_ =
      std::vector<std::deque<std::string>>(FLAGS_nproc);
};

void Screen::show(int local_rank, Stream stream, std::string_view text) {
  print(local_rank, stream, text, '\r');
  shows_progress_ = true;
}

void Screen::write(int local_rank, Stream stream, std::string_view line) {
  print(local_rank, stream, line, '\n');
  shows_progress_ = false;
  if (stream == Stream::kStdout) return;
  const int at_fault = gpipe::rank_at_fault(line);
  if (at_fault >= 0 && at_fault != rank_of(local_rank)) {
    at_fault_[local_rank] = at_fault;
  }
  auto& last = last_lines_[local_rank];
  last.emplace_back(line.substr(0, kLastLineBytes));
  if (line.size() > kLastLineBytes) last.back() += " ...";
  if (last.size() > kLastLines) last.pop_front();
}

void Screen::print(int local_rank, Stream stream, std::string_view line,
                   char end) {
  const int fd = stream == Stream::kStdout ? STDOUT_FILENO : STDERR_FILENO;
  const bool is_terminal = isatty(fd);
  std::string text;
  if (is_terminal && shows_progress_) text = "\033[K";  // erases the line
  if (FLAGS_tag_output) {
    const std::string tag = "[" + std::to_string(rank_of(local_rank)) + "]";
    // Six colours that are readable on dark and bright backgrounds.
    text += is_terminal ? "\033[3" + std::to_string(1 + local_rank % 6) + "m" +
                              tag + "\033[0m "
                        : tag + " ";
  }
  text.append(line).push_back(end);
  write_all(fd, text);
}

// ---- The ranks

// Returns the commands of the ranks. `port`: where rank 0 listens. `restart`:
// how often they were started before.
std::vector<gpipe::Command> commands(const std::vector<std::string>& program,
                                     int port, int restart) {
  const std::string address =
      FLAGS_master_addr.empty() ? "127.0.0.1" : FLAGS_master_addr;
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
        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)},
        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(FLAGS_restarts)}};
    if (!std::getenv("OMP_NUM_THREADS")) {
      command.environment.emplace_back(
          "OMP_NUM_THREADS", std::to_string(std::max(1, cores / FLAGS_nproc)));
    }
    for (auto& each : gpipe::keep_freed_memory_variables()) {
      command.environment.push_back(std::move(each));
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
  Forwarder() : thread_([this] { run(); }) {}
  ~Forwarder() {
    is_done_ = true;
    pthread_kill(thread_.native_handle(), kForwarded[0]);
    thread_.join();
  }

  // Forwards to `processes` from now on.
  void begin(Processes& processes) {
    std::lock_guard<std::mutex> lock(mutex_);
    processes_ = &processes;
    if (number_ != 0) processes.signal_all(number_);
  }

  // Forwards to none from now on. Later lines follow the line about a signal.
  void end() {
    std::scoped_lock lock(line_, mutex_);
    processes_ = nullptr;
  }

  // Returns whether a signal has come.
  bool is_stopped() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return number_ != 0;
  }

 private:
  // Returns whether the parent process ignores the signal, as nohup does with
  // SIGHUP.
  static bool is_ignored(int number) {
    struct sigaction action;
    return sigaction(number, nullptr, &action) == 0 &&
           action.sa_handler == SIG_IGN;
  }

  void run() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : kForwarded) sigaddset(&signals, number);
    for (;;) {
      int number = 0;
      if (sigwait(&signals, &number) != 0) continue;
      if (is_done_) return;
      if (is_ignored(number)) continue;
      // stderr may be blocked. No signal to ranks waits for the line, also not
      // to ranks that start now.
      std::lock_guard<std::mutex> line(line_);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        number_ = number;
        if (processes_) processes_->signal_all(number);
      }
      say("passes signal ", number, " (", strsignal(number),
          ") on to all ranks");
    }
  }

  std::atomic<bool> is_done_{false};
  std::mutex line_;           // while a signal is forwarded and told
  mutable std::mutex mutex_;  // protects the next two
  Processes* processes_ = nullptr;
  int number_ = 0;  // the last signal
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

// How all ranks have ended.
struct Endings {
  int first = -1;  // the first one that failed; -1 if none has
  // Whether the launcher has ended a rank, by rank.
  std::vector<bool> ended_by_signal;
};

// Blocks until all ranks have ended.
Endings wait_for(Processes& processes) {
  const auto grace = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(FLAGS_grace));
  constexpr std::array<int, 2> kMeans = {SIGTERM, SIGKILL};
  std::size_t means = 0;
  auto deadline = Clock::time_point::max();
  Endings endings;
  endings.ended_by_signal.resize(processes.size());
  int& first = endings.first;
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
    if (late.empty()) return endings;
    for (int k = 0; k < processes.size(); ++k) {
      if (!processes.exit_of(k)) endings.ended_by_signal[k] = true;
    }
    processes.signal_all(kMeans[means]);
    say("sends signal ", kMeans[means], " (", strsignal(kMeans[means]),
        ") to ranks that still run: ", late);
    deadline = ++means < kMeans.size() ? Clock::now() + grace
                                       : Clock::time_point::max();
  }
}

// Returns the rank whose failure was the cause of others. A rank that exits
// because of another one may exit before it. So this follows what the ranks
// have written, to a rank that has failed without a signal of the launcher.
int cause_of(const Endings& endings, const std::vector<Exit>& exits,
             const Screen& screen) {
  int cause = endings.first;
  for (std::size_t hops = 0; hops < exits.size(); ++hops) {
    const int next = screen.rank_at_fault(cause) - rank_of(0);
    if (next < 0 || next >= static_cast<int>(exits.size()) ||
        exits[next].ok() || endings.ended_by_signal[next]) {
      break;
    }
    cause = next;
  }
  return cause;
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

// Starts all ranks once. Returns the exit code.
int run_once(const std::vector<gpipe::Command>& ranks, Forwarder& forwarder) {
  Screen screen;
  std::vector<Exit> exits;
  Endings endings;
  {
    Processes processes(
        ranks,
        [&](int local_rank, Stream stream, std::string_view line) {
          screen.write(local_rank, stream, line);
        },
        FLAGS_grace,
        [&](int local_rank, Stream stream, std::string_view text) {
          screen.show(local_rank, stream, text);
        });
    forwarder.begin(processes);
    endings = wait_for(processes);
    forwarder.end();
    for (int k = 0; k < processes.size(); ++k) {
      exits.push_back(*processes.exit_of(k));
    }
  }  // from here on no rank writes
  if (endings.first < 0) return 0;
  return report(cause_of(endings, exits, screen), exits, screen);
}

int launch(const std::vector<std::string>& program) {
  Forwarder forwarder;
  for (int restart = 0;; ++restart) {
    // No other program gets the port before rank 0 listens.
    std::optional<gpipe::ReservedPort> reserved;
    if (FLAGS_master_port == 0) reserved.emplace();
    const int port = reserved ? reserved->port() : FLAGS_master_port;
    const int code = run_once(commands(program, port, restart), forwarder);
    if (code == 0 || FLAGS_restarts == 0) return code;
    if (forwarder.is_stopped()) {
      say("does not start the ranks again after a signal to the launcher");
      return code;
    }
    if (restart == FLAGS_restarts) {
      say("gives up after ", restart, restart == 1 ? " restart" : " restarts",
          " (--restarts)");
      return code;
    }
    say("starts all ranks again, restart ", restart + 1, " of ",
        FLAGS_restarts);
  }
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
  std::vector<std::string> program;
  try {
    program = read_command_line(argc, argv);
    if (program.empty()) return 0;
    gpipe::begin_program();
    block_signals();
    return launch(program);
  } catch (const std::invalid_argument& error) {
    say(error.what());
    return kUsage;
  } catch (const std::system_error& error) {
    const std::string& name = program[0];
    const bool is_here = error.code() == std::errc::no_such_file_or_directory &&
                         name.find('/') == std::string::npos &&
                         access(name.c_str(), F_OK) == 0;
    say(error.what(), is_here ? "; the file in this folder is ./" + name : "");
    return kCannotStart;
  }
}
