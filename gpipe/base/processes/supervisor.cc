#include "gpipe/base/processes/supervisor.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "gpipe/base/processes/child.h"

namespace gpipe::internal {
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
