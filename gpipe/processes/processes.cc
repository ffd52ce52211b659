#include "gpipe/processes/processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>

namespace gpipe {
namespace {

using Clock = Processes::Clock;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

// A file descriptor that is closed when the object is destroyed.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

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

// ---- A program, between fork and exec

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

// The arguments of exec. They are built before fork, because the child of a
// process with threads must not allocate memory.
class Program {
 public:
  explicit Program(const Command& command)
      : name_(command.program), path_(find_program(command.program)) {
    words_.push_back(command.program);
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
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<std::string>& environment() const { return variables_; }
  void exec() const { execve(path_.c_str(), argv_.data(), envp_.data()); }

 private:
  std::string name_, path_;
  std::vector<std::string> words_, variables_;
  std::vector<char*> argv_, envp_;  // pointers into the two lists above
};

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

// ---- Output of the ranks

// A splitter of bytes into lines.
class Lines {
 public:
  template <typename Deliver>
  void add(const char* data, std::size_t size, const Deliver& deliver) {
    const std::size_t looked_at = rest_.size();
    rest_.append(data, size);
    std::size_t from = 0;
    for (std::size_t search = looked_at;;) {
      const std::size_t newline = rest_.find('\n', search);
      const std::size_t end = std::min(newline, rest_.size());
      for (; end - from > kLongestLine; from += kLongestLine) {
        deliver(std::string_view(rest_).substr(from, kLongestLine));
      }
      if (newline == std::string::npos) break;
      deliver(std::string_view(rest_).substr(from, end - from));
      from = search = newline + 1;
    }
    rest_.erase(0, from);
  }

  template <typename Deliver>
  void end(const Deliver& deliver) {
    if (!rest_.empty()) deliver(std::string_view(rest_));
    rest_.clear();
  }

 private:
  std::string rest_;  // the beginning of an unfinished line
};

constexpr std::array<Stream, 2> kStreams = {Stream::kStdout, Stream::kStderr};

struct Output {
  Descriptor pipe;  // closed at the end of the output
  Lines lines;
};

struct Child {
  pid_t pid = -1;
  // Becomes readable when the process ends. -1 after that, or if the kernel is
  // older than 5.3 and has no pidfds.
  Descriptor pidfd;
  Clock::time_point started;
  std::array<Output, kStreams.size()> outputs;
  std::optional<Exit> exit;
  // True if other code in this process has reaped the child, by a wait for any
  // child. Its pid may belong to another process now.
  bool is_reaped = false;
};

Descriptor open_pidfd(pid_t pid) {
#ifdef SYS_pidfd_open
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
#else
  return Descriptor();
#endif
}

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

// Starts a process and returns it. Throws std::system_error if that fails.
std::unique_ptr<Child> start(const Program& program, const Command& command) {
  auto child = std::make_unique<Child>();
  Pipe out, err;
  const Descriptor in =
      beyond_standard(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
  child->started = Clock::now();
  child->pid = command.spawn ? command.spawn(program.environment(), in.get(),
                                             out.write.get(), err.write.get())
                             : fork_and_exec(program, in.get(), out.write.get(),
                                             err.write.get());
  child->pidfd = open_pidfd(child->pid);
  child->outputs[0].pipe = std::move(out.read);
  child->outputs[1].pipe = std::move(err.read);
  for (const Output& output : child->outputs) {
    fcntl(output.pipe.get(), F_SETFL, O_NONBLOCK);
  }
  return child;
}

}  // namespace

// The processes, and a thread that starts them, reads their output and notices
// their ends.
//
// The processes are reaped only in the destructor. Until then, no other process
// gets their pids, so signals to their groups reach only them and the processes
// that they have started.
class Processes::Watch {
 public:
  Watch(const std::vector<Command>& commands, OnLine on_line)
      : on_line_(std::move(on_line)), wake_(eventfd(0, EFD_CLOEXEC)) {
    if (wake_.get() < 0) fail(errno, "cannot create an eventfd");
    std::vector<std::unique_ptr<Program>> programs;
    for (const Command& command : commands) {
      programs.push_back(std::make_unique<Program>(command));
    }
    std::promise<void> promise;
    std::future<void> started = promise.get_future();
    // The kernel kills the children when the thread that started them ends. So
    // this long-lived thread starts them. It blocks all signals; other threads
    // handle them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread(
        [this, &commands, &programs, promise = std::move(promise)]() mutable {
          try {
            for (std::size_t k = 0; k < commands.size(); ++k) {
              children_.push_back(start(*programs[k], commands[k]));
            }
          } catch (...) {
            kill_and_reap();
            promise.set_exception(std::current_exception());
            return;
          }
          promise.set_value();  // both lists are gone after this
          run();
        });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    try {
      started.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~Watch() {
    const std::uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof(one)) < 0) std::terminate();
    thread_.join();
    kill_and_reap();
  }

  const Child& child(int rank) const { return *children_.at(rank); }
  int size() const { return static_cast<int>(children_.size()); }

  void signal(int rank, int number) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!child(rank).is_reaped) kill(-child(rank).pid, number);
  }

  std::optional<Exit> exit_of(int rank) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return child(rank).exit;
  }

  std::optional<int> wait_any(Clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline,
                        [this] { return !ended_.empty() || all_have_ended(); });
    if (ended_.empty()) return {};
    const int rank = ended_.front();
    ended_.pop_front();
    return rank;
  }

  bool wait_all(Clock::time_point deadline) const {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_until(lock, deadline,
                               [this] { return all_have_ended(); });
  }

 private:
  bool all_have_ended() const {
    return std::all_of(children_.begin(), children_.end(),
                       [](const auto& child) { return child->exit; });
  }

  void kill_and_reap() {
    for (const auto& child : children_) {
      if (child->is_reaped) continue;
      kill(-child->pid, SIGKILL);
      waitpid(child->pid, nullptr, 0);
    }
  }

  // ---- On the thread

  void run() {
    for (;;) {
      // poll() ignores closed descriptors, which are -1.
      std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
      bool must_look = false;
      for (const auto& child : children_) {
        polled.push_back({child->pidfd.get(), POLLIN, 0});
        for (const Output& output : child->outputs) {
          polled.push_back({output.pipe.get(), POLLIN, 0});
        }
        must_look |= child->pidfd.get() < 0 && !child->exit;
      }
      poll(polled.data(), polled.size(), must_look ? 10 : -1);
      // Ends come first, because delivering lines may take long, and other
      // processes end meanwhile.
      find_ends();
      std::size_t k = 1;
      for (int rank = 0; rank < size(); ++rank) {
        ++k;  // the pidfd
        for (const Stream stream : kStreams) {
          if (polled[k++].revents != 0) read_some(rank, stream);
        }
      }
      if (polled[0].revents != 0) break;
    }
    for (int rank = 0; rank < size(); ++rank) drain(rank);
  }

  void find_ends() {
    std::vector<std::pair<int, Exit>> found;
    for (int rank = 0; rank < size(); ++rank) {
      Child& child = *children_[rank];
      if (child.exit) continue;
      siginfo_t info;
      info.si_pid = 0;
      const int result =
          waitid(P_PID, child.pid, &info, WEXITED | WNOHANG | WNOWAIT);
      if (result == 0 && info.si_pid == 0) continue;
      Exit exit;
      exit.seconds =
          std::chrono::duration<double>(Clock::now() - child.started).count();
      if (result == 0) {
        (info.si_code == CLD_EXITED ? exit.code : exit.signal) = info.si_status;
      }
      child.pidfd.close();
      found.emplace_back(rank, exit);
    }
    std::stable_partition(found.begin(), found.end(), [](const auto& each) {
      return each.second.signal != 0;
    });
    for (const auto& [rank, exit] : found) {
      drain(rank);
      std::lock_guard<std::mutex> lock(mutex_);
      children_[rank]->exit = exit;
      children_[rank]->is_reaped = exit.code < 0 && exit.signal == 0;
      ended_.push_back(rank);
      changed_.notify_all();
    }
  }

  Output& output(int rank, Stream stream) {
    return children_[rank]->outputs[static_cast<std::size_t>(stream)];
  }

  auto deliver(int rank, Stream stream) {
    return [this, rank, stream](std::string_view line) {
      on_line_(rank, stream, line);
    };
  }

  // Reads and delivers at most one buffer of what has been written. Returns the
  // number of bytes.
  std::size_t read_some(int rank, Stream stream) {
    Output& from = output(rank, stream);
    if (from.pipe.get() < 0) return 0;
    const ssize_t size = read(from.pipe.get(), buffer_.data(), buffer_.size());
    if (size > 0) {
      from.lines.add(buffer_.data(), size, deliver(rank, stream));
      return size;
    }
    if (size < 0) return 0;  // nothing to read yet
    from.lines.end(deliver(rank, stream));
    from.pipe.close();
    return 0;
  }

  // Delivers what is in the pipes now. It does not wait for the end of the
  // output, because processes that the rank has started may write forever.
  void drain(int rank) {
    for (const Stream stream : kStreams) {
      Output& from = output(rank, stream);
      int left = 0;
      if (from.pipe.get() >= 0) ioctl(from.pipe.get(), FIONREAD, &left);
      while (left > 0) {
        const std::size_t size = read_some(rank, stream);
        if (size == 0) break;
        left -= static_cast<int>(size);
      }
      from.lines.end(deliver(rank, stream));
    }
  }

  const OnLine on_line_;
  std::vector<std::unique_ptr<Child>> children_;
  Descriptor wake_;  // readable when the thread is to end
  std::array<char, kLongestLine> buffer_;

  // Protects `exit` and `is_reaped` of the children, which the thread sets, and
  // the members below.
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<int> ended_;  // not yet returned by wait_any()
  std::thread thread_;
};

Processes::Processes(const std::vector<Command>& commands, OnLine on_line,
                     double grace_seconds)
    : grace_seconds_(grace_seconds),
      watch_(std::make_unique<Watch>(commands, std::move(on_line))) {}

Processes::~Processes() {
  signal_all(SIGTERM);
  // A stopped process gets SIGTERM only after it continues.
  signal_all(SIGCONT);
  wait_all(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(grace_seconds_)));
  signal_all(SIGKILL);
  wait_all(Clock::time_point::max());
}

int Processes::size() const { return watch_->size(); }

pid_t Processes::pid_of(int rank) const { return watch_->child(rank).pid; }

void Processes::signal(int rank, int number) { watch_->signal(rank, number); }

void Processes::signal_all(int number) {
  for (int rank = 0; rank < size(); ++rank) signal(rank, number);
}

std::optional<Exit> Processes::exit_of(int rank) const {
  return watch_->exit_of(rank);
}

std::optional<int> Processes::wait_any(Clock::time_point deadline) {
  return watch_->wait_any(deadline);
}

bool Processes::wait_all(Clock::time_point deadline) const {
  return watch_->wait_all(deadline);
}

std::string to_string(const Exit& exit) {
  if (exit.code >= 0) return "exit code " + std::to_string(exit.code);
  if (exit.signal == 0) return "an unknown exit code";
  return "signal " + std::to_string(exit.signal) + " (" +
         strsignal(exit.signal) + ")";
}

int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (socket.get() < 0 || bind(socket.get(), generic, size) != 0 ||
      getsockname(socket.get(), generic, &size) != 0) {
    fail(errno, "cannot find a free port of 127.0.0.1");
  }
  return ntohs(address.sin_port);
}

}  // namespace gpipe
