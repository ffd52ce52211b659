// Child processes, one per rank: started together, listened to, and never left
// behind. For //tools:launch, and tests that need real ranks. Linux only; no
// LibTorch.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe {

// What a rank runs.
struct Command {
  // A path; without a slash, a name that is looked up in PATH.
  std::string program;
  std::vector<std::string> arguments = {};  // without the program itself
  // Names and values that are set in addition to this process's environment, or
  // in the place of its own.
  std::vector<std::pair<std::string, std::string>> environment = {};
};

// How a process has ended.
struct Exit {
  int code = -1;       // what it returned; -1 if a signal ended it
  int signal = 0;      // that signal, or 0
  double seconds = 0;  // since it was started

  bool ok() const { return code == 0; }
};

enum class Stream { kStdout, kStderr };

// The longest line that is delivered in one piece, in bytes.
constexpr std::size_t kLongestLine = 64 * 1024;

// Runs commands[r] as rank r.
//
// - Each is the leader of a process group, which signals go to: what it starts
//   gets them, too. (So Ctrl-C on a terminal does not reach it by itself.)
// - Its stdin is empty (/dev/null), since a terminal would stop a process that
//   reads and is not in the foreground.
// - It starts with no signal blocked, whatever is blocked here.
// - When this process dies, by SIGKILL even, the kernel kills it. That does not
//   hold for what it has started itself, nor for programs with the setuid bit.
//
// Threads: the methods may be called from any thread, but not from `on_line`.
class Processes {
 public:
  using Clock = std::chrono::steady_clock;

  // Called for each line that a rank writes, without its end, from one thread,
  // in order for each of its streams. Longer lines than kLongestLine come in
  // pieces of that size; what was not ended by a newline when the rank ended is
  // a line, too. All that a rank has written comes before its end is known. It
  // must not throw; as long as it does not return, ranks that write must wait.
  using OnLine =
      std::function<void(int rank, Stream stream, std::string_view line)>;

  // All have been started when it returns. `grace_seconds`: see the destructor.
  //
  // Errors: std::system_error if one cannot be started (its program is not
  // there, may not be run, ...). The others have been killed then.
  Processes(const std::vector<Command>& commands, OnLine on_line,
            double grace_seconds = 5);

  // Ends all that still run, and what they have started: by SIGTERM, and after
  // the grace period by SIGKILL. Their last lines are delivered.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int size() const;
  pid_t pid_of(int rank) const;

  // Sends a signal to the process group of a rank, or of all. A rank that has
  // ended does not mind.
  void signal(int rank, int number);
  void signal_all(int number);

  // nullopt as long as it runs.
  std::optional<Exit> exit_of(int rank) const;

  // The next rank that has ended, in the order in which they end, each once. Of
  // those that are found ended at the same time, ones that a signal ended are
  // first: others often fail because of them. nullopt if the deadline passes,
  // or none is left.
  std::optional<int> wait_any(Clock::time_point deadline);

  // Whether all have ended before the deadline.
  bool wait_all(Clock::time_point deadline) const;

 private:
  class Watch;
  const double grace_seconds_;
  std::unique_ptr<Watch> watch_;
};

// "exit code 3", "signal 9 (Killed)".
std::string to_string(const Exit& exit);

// A TCP port of 127.0.0.1 that nobody listens on. Somebody else may before its
// caller does, which is rare, since the kernel chooses at random.
// Errors: std::system_error.
int free_port();

}  // namespace gpipe
