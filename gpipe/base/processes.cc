#include "gpipe/base/processes.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

// Throws std::system_error with errno's value `error`.
[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

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

namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      fail(errno, "cannot create a pipe for a rank");
    read = Descriptor(ends[0]);
    write = Descriptor(ends[1]);
  }
  Descriptor read, write;
};

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* const path = std::getenv("PATH");
  const std::vector<std::string> folders =
      absl::StrSplit(path ? path : "/usr/bin:/bin", ':');
  for (const std::string& folder : folders) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
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

// Starts a program as Processes does. Throws std::system_error if that fails.
// The kernel kills the process when the calling thread ends.
Child start(const Program& program) {
  Child child;
  Pipe out, err;
  const Descriptor in(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (in.get() < 0) fail(errno, "/dev/null");
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

}  // namespace

// A process that kills process groups when this process dies, even by SIGKILL.
// PR_SET_PDEATHSIG reaches a child of this process, but not the processes that
// the child has started.
//
// The supervisor has a session of its own, ignores signals other than SIGKILL
// and holds no files. It learns from a socket that this process is dead, and so
// not before the copies that fork() makes of this process have called exec or
// ended.
class Supervisor {
 public:
  // `most`: the largest number of groups. Throws std::system_error if the
  // process cannot start.
  explicit Supervisor(std::size_t most);
  // Ends the supervisor, which kills no group then.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Adds a process group.
  void add(pid_t group);

 private:
  Descriptor socket_;
  pid_t pid_ = -1;
};

namespace {

// Tells the supervisor to end.
constexpr pid_t kEnd = 0;
// Files that are closed one by one where the kernel is older than 5.9 and has
// no close_range().
constexpr unsigned kFiles = 4096;

void close_files(unsigned first, unsigned last) {
  if (first > last) return;
#ifdef SYS_close_range
  if (syscall(SYS_close_range, first, last, 0) == 0) return;
#endif
  for (unsigned fd = first; fd <= last && fd < kFiles; ++fd) {
    ::close(static_cast<int>(fd));
  }
}

// Runs in the child after fork; never returns. Calls only functions that are
// safe in a signal handler. `groups`: memory for all groups.
[[noreturn]] void supervise(int socket, std::vector<pid_t>& groups) {
  setsid();
  for (int number = 1; number < NSIG; ++number) std::signal(number, SIG_IGN);
  const auto own = static_cast<unsigned>(socket);
  if (own > 0) close_files(0, own - 1);
  close_files(own + 1, ~0U);
  std::size_t count = 0;
  for (;;) {
    pid_t group = kEnd;
    const ssize_t size = read(socket, &group, sizeof(group));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(group)) break;
    if (group == kEnd) _exit(0);
    if (count < groups.size()) groups[count++] = group;
  }
  for (std::size_t k = 0; k < count; ++k) kill(-groups[k], SIGKILL);
  _exit(0);
}

}  // namespace

Supervisor::Supervisor(std::size_t most) {
  std::vector<pid_t> groups(most);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    fail(errno, "cannot create a socket for the supervisor of the ranks");
  }
  const Descriptor theirs(ends[0]);
  socket_ = Descriptor(ends[1]);
  pid_ = fork();
  if (pid_ < 0) fail(errno, "cannot create the supervisor of the ranks");
  if (pid_ == 0) supervise(theirs.get(), groups);
}

Supervisor::~Supervisor() {
  add(kEnd);
  socket_.close();
  waitpid(pid_, nullptr, 0);
}

void Supervisor::add(pid_t group) {
  // An error means that something has killed the supervisor. The ranks go on
  // without it.
  send(socket_.get(), &group, sizeof(group), MSG_NOSIGNAL);
}

}  // namespace gpipe::internal

namespace gpipe {
namespace {

using internal::Descriptor;
using internal::fail;

// The end of a pipe that a rank writes to, read in lines.
class Output {
 public:
  using Deliver = std::function<void(std::string_view line)>;

  // `show`: gets the progress, see Processes::OnProgress; may be null.
  Output(Descriptor pipe, Deliver deliver, Deliver show)
      : pipe_(std::move(pipe)),
        deliver_(std::move(deliver)),
        show_(std::move(show)) {}

  int fd() const { return pipe_.get(); }  // -1 at the end of the output

  // Reads and delivers at most one buffer of what has been written. Returns the
  // number of bytes.
  std::size_t read_some() {
    if (fd() < 0) return 0;
    std::array<char, kLongestLine> buffer;
    const ssize_t size = read(fd(), buffer.data(), buffer.size());
    if (size < 0) return 0;  // nothing to read yet
    if (size == 0) {
      end_line();
      pipe_.close();
    }
    add({buffer.data(), static_cast<std::size_t>(size)});
    if (show_) show_progress();
    return size;
  }

  // Delivers what is in the pipe now. It does not wait for the end of the
  // output, because processes that the rank has started may write forever.
  void drain() {
    int left = 0;
    if (fd() >= 0) ioctl(fd(), FIONREAD, &left);
    while (left > 0) {
      const std::size_t size = read_some();
      if (size == 0) break;
      left -= static_cast<int>(size);
    }
    end_line();
  }

 private:
  void add(std::string_view bytes) {
    std::size_t from = 0, search = rest_.size();
    rest_.append(bytes);
    for (;;) {
      const std::size_t newline = rest_.find('\n', search);
      const std::size_t end = std::min(newline, rest_.size());
      for (; end - from > kLongestLine; from += kLongestLine) {
        deliver_(std::string_view(rest_).substr(from, kLongestLine));
      }
      if (newline == std::string::npos) break;
      deliver(std::string_view(rest_).substr(from, end - from));
      from = search = newline + 1;
    }
    rest_.erase(0, from);
  }

  // Shows the parts of the unfinished line that a '\r' ends, and what follows
  // the last one.
  void show_progress() {
    has_progress_ |= rest_.find('\r') != std::string::npos;
    if (!has_progress_) return;
    rest_.erase(0, rest_.size() - show_parts(rest_).size());
    show(rest_);
  }

  // Shows what each '\r' of `text` ends, and returns the rest.
  std::string_view show_parts(std::string_view text) {
    for (std::size_t end; (end = text.find('\r')) != text.npos;
         text.remove_prefix(end + 1)) {
      show(text.substr(0, end));
    }
    return text;
  }

  void show(std::string_view text) {
    if (text.empty() || text == shown_) return;
    show_(text);
    shown_ = text;
  }

  // Delivers a whole line, or its last part if others have been shown.
  void deliver(std::string_view line) {
    if (has_progress_) line = show_parts(line);
    deliver_(line.empty() ? shown_ : line);
    has_progress_ = false;
    shown_.clear();
  }

  void end_line() {
    if (!rest_.empty() || has_progress_) deliver(rest_);
    rest_.clear();
  }

  Descriptor pipe_;
  const Deliver deliver_, show_;
  std::string rest_;           // the beginning of an unfinished line
  std::string shown_;          // the progress of this line that was shown last
  bool has_progress_ = false;  // a '\r' has been read since the last line
};

}  // namespace

// The pause between two looks at the processes of ranks that have ended.
constexpr std::chrono::milliseconds kLook{10};

// The process of a rank.
struct Processes::Rank {
  internal::Child child;
  std::array<Output, 2> outputs;
  std::optional<Exit> exit = {};
  // True if other code in this process has reaped the child, by a wait for any
  // child. Its pid may belong to another process now.
  bool is_reaped = false;

  void drain() {
    for (Output& output : outputs) output.drain();
  }
};

Processes::Processes(const std::vector<Command>& commands, OnLine on_line,
                     double grace_seconds, OnProgress on_progress)
    : on_line_(std::move(on_line)),
      on_progress_(std::move(on_progress)),
      grace_seconds_(grace_seconds),
      wake_(eventfd(0, EFD_CLOEXEC)) {
  if (wake_.get() < 0) fail(errno, "cannot create an eventfd");
  std::vector<std::unique_ptr<internal::Program>> programs;
  for (const Command& command : commands) {
    programs.push_back(std::make_unique<internal::Program>(command));
  }
  supervisor_ = std::make_unique<internal::Supervisor>(commands.size());
  std::promise<void> promise;
  std::future<void> started = promise.get_future();
  // The kernel kills the children when the thread that started them ends. So
  // this long-lived thread starts them. It blocks all signals; other threads
  // handle them.
  {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const absl::Cleanup as_before = [&before] {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    };
    thread_ =
        std::thread([this, &programs, promise = std::move(promise)]() mutable {
          try {
            for (const auto& program : programs) start(*program);
          } catch (...) {
            kill_and_reap();
            promise.set_exception(std::current_exception());
            return;
          }
          promise.set_value();  // `programs` is gone after this
          run();
        });
  }
  try {
    started.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

Processes::~Processes() {
  signal_all(SIGTERM);
  // A stopped process gets SIGTERM only after it continues.
  signal_all(SIGCONT);
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(grace_seconds_));
  wait_all(deadline);
  // A program may outlive the shell that started it, for example to save.
  while (Clock::now() < deadline && has_running_groups()) {
    std::this_thread::sleep_for(kLook);
  }
  signal_all(SIGKILL);
  wait_all(Clock::time_point::max());
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0) std::terminate();
  thread_.join();
  kill_and_reap();
}

void Processes::start(const internal::Program& program) {
  internal::Child child = internal::start(program);
  supervisor_->add(child.pid);
  const auto output = [&](Stream stream) {
    const auto deliver = [&](const OnLine& to) -> Output::Deliver {
      if (!to) return nullptr;
      return [&to, rank = size(), stream](std::string_view text) {
        to(rank, stream, text);
      };
    };
    return Output(std::move(child.pipes[static_cast<std::size_t>(stream)]),
                  deliver(on_line_), deliver(on_progress_));
  };
  std::array<Output, 2> outputs = {output(Stream::kStdout),
                                   output(Stream::kStderr)};
  ranks_.push_back(
      std::make_unique<Rank>(Rank{std::move(child), std::move(outputs)}));
}

// Nothing reaps the processes before. Until then, no other process gets their
// pids, so signals to their groups reach only them and the processes that they
// have started.
void Processes::kill_and_reap() {
  for (const auto& rank : ranks_) {
    if (rank->is_reaped) continue;
    kill(-rank->child.pid, SIGKILL);
    waitpid(rank->child.pid, nullptr, 0);
  }
}

int Processes::size() const { return static_cast<int>(ranks_.size()); }

pid_t Processes::pid_of(int rank) const { return ranks_.at(rank)->child.pid; }

void Processes::signal(int rank, int number) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ranks_.at(rank)->is_reaped) kill(-pid_of(rank), number);
}

bool Processes::has_running_groups() const {
  std::set<pid_t> groups;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& rank : ranks_) {
      if (!rank->is_reaped) groups.insert(rank->child.pid);
    }
  }
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end;
       !error && at != end; at.increment(error)) {
    // "pid (name) state parent group ...", where the name may hold anything.
    std::ifstream file(at->path() / "stat");
    std::string text;
    std::getline(file, text);
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    char state = 'Z';
    pid_t parent = 0, group = 0;
    fields >> state >> parent >> group;
    if (state != 'Z' && groups.contains(group)) return true;
  }
  return false;
}

void Processes::signal_all(int number) {
  for (int rank = 0; rank < size(); ++rank) signal(rank, number);
}

std::optional<Exit> Processes::exit_of(int rank) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ranks_.at(rank)->exit;
}

std::optional<int> Processes::wait_any(Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, deadline,
                      [this] { return !ended_.empty() || all_have_ended(); });
  if (ended_.empty()) return {};
  const int rank = ended_.front();
  ended_.pop_front();
  return rank;
}

bool Processes::wait_all(Clock::time_point deadline) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, deadline,
                             [this] { return all_have_ended(); });
}

bool Processes::all_have_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->exit; });
}

// ---- On the thread

void Processes::run() {
  for (;;) {
    // poll() ignores closed descriptors, which are -1.
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    bool must_look = false;
    for (const auto& rank : ranks_) {
      const int pidfd = rank->child.pidfd.get();
      polled.push_back({pidfd, POLLIN, 0});
      for (const Output& output : rank->outputs) {
        polled.push_back({output.fd(), POLLIN, 0});
      }
      must_look |= pidfd < 0 && !rank->exit;
    }
    poll(polled.data(), polled.size(), must_look ? 10 : -1);
    // Ends come first, because delivering lines may take long, and other
    // processes end meanwhile.
    find_ends();
    std::size_t k = 1;
    for (const auto& rank : ranks_) {
      ++k;  // the pidfd
      for (Output& output : rank->outputs) {
        if (polled[k++].revents != 0) output.read_some();
      }
    }
    if (polled[0].revents != 0) break;
  }
  for (const auto& rank : ranks_) rank->drain();
}

void Processes::find_ends() {
  std::vector<std::pair<int, Exit>> found;
  for (int rank = 0; rank < size(); ++rank) {
    internal::Child& child = ranks_[rank]->child;
    if (ranks_[rank]->exit) continue;
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
    ranks_[rank]->drain();
    std::lock_guard<std::mutex> lock(mutex_);
    ranks_[rank]->exit = exit;
    ranks_[rank]->is_reaped = exit.code < 0 && exit.signal == 0;
    ended_.push_back(rank);
    changed_.notify_all();
  }
}

std::string to_string(const Exit& exit) {
  if (exit.code >= 0) return "exit code " + std::to_string(exit.code);
  if (exit.signal == 0) return "an unknown exit code";
  return "signal " + std::to_string(exit.signal) + " (" +
         strsignal(exit.signal) + ")";
}

ReservedPort::ReservedPort()
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int yes = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (socket() < 0 ||
      setsockopt(socket(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(socket(), generic, size) != 0 ||
      getsockname(socket(), generic, &size) != 0) {
    fail(errno, "cannot find a free port of 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
}

int rank_at_fault(std::string_view line) {
  constexpr std::string_view kRank = "rank ";
  for (auto at = line.find(kRank); at != std::string_view::npos;
       at = line.find(kRank, at + 1)) {
    const char* const begin = line.data() + at + kRank.size();
    const char* const end = line.data() + line.size();
    int rank = -1;
    const auto [rest, error] = std::from_chars(begin, end, rank);
    if (error != std::errc() || rank < 0 || rest == end || *rest != ' ') {
      continue;
    }
    const std::string_view words(rest + 1, end - rest - 1);
    for (const std::string_view fault : kFaultWords) {
      if (words.substr(0, fault.size()) == fault) return rank;
    }
  }
  return -1;
}

}  // namespace gpipe
