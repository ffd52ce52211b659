// Child processes, one for each rank. They start together, their output is
// read, and none is left behind. For //tools:launch, and for tests with real
// ranks. Linux only; no LibTorch.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/base/descriptor.h"

namespace gpipe {

namespace internal {
class Program;
class Supervisor;
}  // namespace internal

// The program of a rank.
struct Command {
  // A path, or a name without a slash that is looked up in PATH.
  std::string program;
  std::vector<std::string> arguments = {};  // without the program itself
  // Names and values of variables, added to the environment of this process.
  // They replace variables with the same name.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // Starts the process in another way than fork and exec of `program`, if
  // given. Gets the whole environment ("NAME=value") and the descriptors of
  // stdin, stdout and stderr. Returns the pid of a child of this process, which
  // must have what class Processes promises of each process. Throws if that
  // fails.
  using Spawn = std::function<pid_t(const std::vector<std::string>& environment,
                                    int in, int out, int err)>;
  Spawn spawn = {};
};

// How a process has ended.
struct Exit {
  int code = -1;       // exit code; -1 if a signal ended the process
  int signal = 0;      // that signal, or 0
  double seconds = 0;  // from its start to its end

  bool ok() const { return code == 0; }
};

enum class Stream { kStdout, kStderr };

// The length in bytes of the longest line that is delivered in one piece.
constexpr std::size_t kLongestLine = 64 * 1024;

// The running processes of all ranks: rank r runs commands[r].
//
// - Each process leads a process group. Signals go to the group, so they reach
// the processes that it starts, too. (Ctrl-C on a terminal therefore does not
// reach the ranks by itself.)
// - stdin is empty (/dev/null), because a terminal would stop a background
// process that reads.
// - A process starts with no signal blocked, whatever this process blocks.
// - When this process dies, even by SIGKILL, the kernel kills all ranks, unless
// they have the setuid bit. A supervisor, which is another child of this
// process, then kills the processes that they have started, unless these have
// left the group of their rank.
//
// stdin, stdout and stderr of this process must be open (see begin_program()),
// so that no pipe of a rank gets the number of one of them.
//
// Threads: any thread may call the methods, but not from within `on_line`.
class Processes {
 public:
  using Clock = std::chrono::steady_clock;

  // A callback for each line that a rank writes, without the newline. All calls
  // are made by one thread, in order for each stream of a rank. Lines longer
  // than kLongestLine come in pieces of that size. A last line without a
  // newline is delivered, too. All output of a rank is delivered before the
  // rank counts as ended. It must not throw. While it runs, ranks that write
  // may have to wait.
  using OnLine =
      std::function<void(int rank, Stream stream, std::string_view line)>;

  // A callback for the parts of an unfinished line with a '\r' in it, as of a
  // progress bar: the text before each '\r', and, as soon as it is there, the
  // text after the last one. The line that is delivered at last has only the
  // last part. Called as OnLine is.
  using OnProgress = OnLine;

  // Starts all processes; when it returns, all are running.
  // `grace_seconds`: see the destructor.
  // `on_progress`: if it is null, a '\r' is an ordinary byte of a line.
  //
  // Throws std::system_error if one cannot be started (the program is missing,
  // is not executable, ...). The others have been killed then.
  Processes(const std::vector<Command>& commands, OnLine on_line,
            double grace_seconds = 5, OnProgress on_progress = nullptr);

  // Ends all ranks that still run, and the processes that they have started: by
  // SIGTERM, and after `grace_seconds` by SIGKILL. Their last lines are
  // delivered.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int size() const;
  pid_t pid_of(int rank) const;

  // Sends the signal `number` to the process group of a rank, or of all ranks.
  // After the rank has ended, the signal still reaches the processes that it
  // has started.
  void signal(int rank, int number);
  void signal_all(int number);

  // Returns how a rank has ended, or nullopt while it runs.
  std::optional<Exit> exit_of(int rank) const;

  // Blocks until a rank has ended and returns it. Ranks are returned in the
  // order in which they end, each once. Of ranks that are found to have ended
  // at the same time, those ended by a signal come first, because others often
  // fail as a consequence. Returns nullopt if `deadline` passes, or if all have
  // been returned.
  std::optional<int> wait_any(Clock::time_point deadline);

  // Blocks until all ranks have ended, at most until `deadline`. Returns
  // whether all have ended.
  bool wait_all(Clock::time_point deadline) const;

 private:
  struct Rank;

  // Returns whether a process that a rank has started still runs.
  bool has_running_groups() const;

  // On the thread: starts the ranks, reads their output and notices their ends.
  void start(const internal::Program& program);
  void run();
  void find_ends();

  bool all_have_ended() const;
  void kill_and_reap();

  const OnLine on_line_;
  const OnProgress on_progress_;
  const double grace_seconds_;
  std::unique_ptr<internal::Supervisor> supervisor_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  // Readable when the thread is to end.
  internal::Descriptor wake_;

  // Protects `exit` and `is_reaped` of the ranks, which the thread sets, and
  // the members below.
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<int> ended_;  // not yet returned by wait_any()
  std::thread thread_;
};

// Returns a text such as "exit code 3" or "signal 9 (Killed)".
std::string to_string(const Exit& exit);

// A TCP port of 127.0.0.1 that stays bound while this object lives. A program
// can listen on the port, because both sockets have SO_REUSEADDR. The kernel
// gives the port to no other socket that asks for any free port. Throws
// std::system_error if there is no free port.
class ReservedPort {
 public:
  ReservedPort();
  int port() const { return port_; }
  int socket() const { return socket_.get(); }

 private:
  const internal::Descriptor socket_;
  int port_ = 0;
};

// Returns a TCP port of 127.0.0.1 on which no process listens. Another process
// can take it before the caller does; that is rare, since the kernel chooses
// ports at random. Throws std::system_error if there is none.
inline int free_port() { return ReservedPort().port(); }

// ---- Finds in the output of a rank which rank it calls the cause of its
// failure.

// The words after "rank 2 " in the text of a gpipe::PeerError, in the order of
// gpipe::Fault.
constexpr std::array<const char*, 7> kFaultWords = {
    "has failed",
    "has died",
    "is frozen",
    "has not answered in time",
    "disagrees",
    "has left",
    "has refused its arguments"};

// Returns the number in the first "rank 2 has failed", "rank 2 has died", ...
// of `line`; -1 if there is none, or if it does not fit an int.
int rank_at_fault(std::string_view line);

}  // namespace gpipe
