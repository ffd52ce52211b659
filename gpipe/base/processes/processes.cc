#include "gpipe/base/processes/processes.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <future>
#include <system_error>

#include "gpipe/base/processes/child.h"
#include "gpipe/base/processes/supervisor.h"

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
      wake_(std::make_unique<Descriptor>(eventfd(0, EFD_CLOEXEC))) {
  if (wake_->get() < 0) fail(errno, "cannot create an eventfd");
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
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
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
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
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
  wait_all(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(grace_seconds_)));
  signal_all(SIGKILL);
  wait_all(Clock::time_point::max());
  const std::uint64_t one = 1;
  if (write(wake_->get(), &one, sizeof(one)) < 0) std::terminate();
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
    std::vector<pollfd> polled = {{wake_->get(), POLLIN, 0}};
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
