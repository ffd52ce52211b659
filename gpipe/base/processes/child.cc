#include "gpipe/base/processes/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace gpipe::internal {
namespace {

// Returns `fd`, or a copy that is not 0, 1 or 2. These three may be free in
// this process, and the child overwrites them. Throws std::system_error with
// the text `what` if `fd` is negative.
Descriptor beyond_standard(int fd, const char* what) {
  if (fd < 0) fail(errno, what);
  Descriptor descriptor(fd);
  if (fd > STDERR_FILENO) return descriptor;
  Descriptor copy(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (copy.get() < 0) fail(errno, what);
  return copy;
}

// A pipe. Neither end is 0, 1 or 2.
struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      fail(errno, "cannot create a pipe for a rank");
    Descriptor second(ends[1]);  // closed if the next line throws
    read = beyond_standard(ends[0], "cannot create a pipe for a rank");
    write =
        beyond_standard(fcntl(second.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1),
                        "cannot create a pipe for a rank");
  }
  Descriptor read, write;
};

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* const path = std::getenv("PATH");
  std::string rest = path ? path : "/usr/bin:/bin";
  rest += ':';
  for (std::size_t colon; (colon = rest.find(':')) != std::string::npos;
       rest.erase(0, colon + 1)) {
    const std::string file =
        (colon == 0 ? "." : rest.substr(0, colon)) + "/" + name;
    if (!name.empty() && access(file.c_str(), X_OK) == 0) return file;
  }
  fail(ENOENT, "cannot start '" + name + "', which is not in PATH");
}

// Runs in the child after fork; never returns. Calls only functions that are
// safe in a signal handler, because locks of other threads, such as the
// allocator's, may be held forever.
[[noreturn]] void become(const Program& program, pid_t parent, int in, int out,
                         int err, int failure) {
  setpgid(0, 0);
  // If the parent dies before prctl(), getppid() tells.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  // The parent's signal handlers must not run in the child. Ignored signals
  // stay ignored, as with nohup.
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action;
    if (sigaction(number, nullptr, &action) == 0 &&
        action.sa_handler != SIG_IGN && action.sa_handler != SIG_DFL) {
      std::memset(&action, 0, sizeof(action));
      action.sa_handler = SIG_DFL;
      sigaction(number, &action, nullptr);
    }
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  program.exec();
  const int error = errno;
  if (write(failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

Descriptor open_pidfd(pid_t pid) {
#ifdef SYS_pidfd_open
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
#else
  return Descriptor();
#endif
}

}  // namespace

void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

Program::Program(const Command& command)
    : path_(find_program(command.program)),
      spawn_(command.spawn),
      words_{command.program} {
  words_.insert(words_.end(), command.arguments.begin(),
                command.arguments.end());
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('='));
    const auto is_it = [&](const auto& given) { return given.first == name; };
    if (std::none_of(command.environment.begin(), command.environment.end(),
                     is_it)) {
      variables_.push_back(text);
    }
  }
  for (const auto& [name, value] : command.environment) {
    variables_.push_back(name + "=" + value);
  }
  for (std::string& word : words_) argv_.push_back(word.data());
  for (std::string& variable : variables_) envp_.push_back(variable.data());
  argv_.push_back(nullptr);
  envp_.push_back(nullptr);
}

namespace {

// Starts a process and returns its pid. Throws std::system_error.
pid_t fork_and_exec(const Program& program, int in, int out, int err) {
  Pipe failure;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0)
    fail(errno, "cannot create a process for '" + program.name() + "'");
  if (pid == 0) become(program, parent, in, out, err, failure.write.get());
  // exec closes the child's end. If exec fails, the child writes the error
  // first.
  failure.write.close();
  int error = 0;
  if (read(failure.read.get(), &error, sizeof(error)) > 0) {
    waitpid(pid, nullptr, 0);
    fail(error, "cannot start '" + program.name() + "'");
  }
  return pid;
}

}  // namespace

Child start(const Program& program) {
  Child child;
  Pipe out, err;
  const Descriptor in =
      beyond_standard(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
  child.started = Processes::Clock::now();
  child.pid =
      program.spawn()
          ? program.spawn()(program.environment(), in.get(), out.write.get(),
                            err.write.get())
          : fork_and_exec(program, in.get(), out.write.get(), err.write.get());
  child.pidfd = open_pidfd(child.pid);
  child.pipes = {std::move(out.read), std::move(err.read)};
  for (const Descriptor& pipe : child.pipes) {
    fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  }
  return child;
}

}  // namespace gpipe::internal
