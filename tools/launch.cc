// Starts the ranks of a distributed job on this machine, prints their output,
// and ends all of them, or starts all again, when one fails. See --help.
//
//   ./bazelw run //tools:launch -- --nproc=4 -- path/to/binary --its_flags
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
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
#include "tools/launch_flags.h"
#include "tools/launch_screen.h"

namespace {

using gpipe::Exit;
using gpipe::Processes;
using gpipe::Stream;
using gpipe::internal::refuse;
using Clock = Processes::Clock;

// The launcher's own exit codes. Otherwise it returns that of the rank that
// failed first.
constexpr int kUsage = 2;
constexpr int kCannotStart = 127;

// ---- Output

template <typename... Parts>
void say(const Parts&... parts) {
  std::ostringstream text;
  text << "launch: ";
  (text << ... << parts) << "\n";
  write_all(STDERR_FILENO, text.str());
}

// ---- The ranks

// Returns the commands of the ranks. `restart`: how often they were started
// before.
std::vector<gpipe::Command> commands(const std::vector<std::string>& program,
                                     int restart) {
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

  // Forwards to `processes` from now on; to none if it is null.
  void set(Processes* processes) {
    std::lock_guard<std::mutex> lock(mutex_);
    processes_ = processes;
    if (processes && number_ != 0) processes->signal_all(number_);
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
      say("passes signal ", number, " (", strsignal(number),
          ") on to all ranks");
      std::lock_guard<std::mutex> lock(mutex_);
      number_ = number;
      if (processes_) processes_->signal_all(number);
    }
  }

  std::atomic<bool> is_done_{false};
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
    say("sends signal ", kMeans[means], " (", strsignal(kMeans[means]),
        ") to ranks that still run: ", late);
    processes.signal_all(kMeans[means]);
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
    forwarder.set(&processes);
    endings = wait_for(processes);
    forwarder.set(nullptr);
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
    const int code = run_once(commands(program, restart), forwarder);
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
    gpipe::enter_working_directory();
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
