// Starts a program as a child process. Linux only; no LibTorch.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/processes/descriptor.h"
#include "gpipe/base/processes/processes.h"

namespace gpipe::internal {

// Throws std::system_error with errno's value `error`.
[[noreturn]] void fail(int error, const std::string& what);

// The arguments of exec. They are built before fork, because the child of a
// process with threads must not allocate memory.
class Program {
 public:
  // Throws std::system_error if the program is not in PATH.
  explicit Program(const Command& command);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::string& name() const { return words_[0]; }
  const Command::Spawn& spawn() const { return spawn_; }
  const std::vector<std::string>& environment() const { return variables_; }
  void exec() const { execve(path_.c_str(), argv_.data(), envp_.data()); }

 private:
  std::string path_;
  Command::Spawn spawn_;
  std::vector<std::string> words_, variables_;
  std::vector<char*> argv_, envp_;  // pointers into the two lists above
};

// A process that has been started.
struct Child {
  pid_t pid = -1;
  // Becomes readable when the process ends. -1 if the kernel is older than 5.3
  // and has no pidfds.
  Descriptor pidfd;
  Processes::Clock::time_point started;
  std::array<Descriptor, 2> pipes;  // non-blocking; by Stream
};

// Starts a program as Processes does. Throws std::system_error if that fails.
// The kernel kills the process when the calling thread ends.
Child start(const Program& program);

}  // namespace gpipe::internal
