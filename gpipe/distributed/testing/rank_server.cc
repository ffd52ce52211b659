#include "gpipe/distributed/testing/rank_server.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "gpipe/base/processes.h"

namespace gpipe::testing {
namespace {

constexpr char kSocket[] = "GPIPE_TEST_RANK_SERVER";

using Standard = std::array<int, 3>;  // stdin, stdout and stderr

// A message with space for descriptors.
struct Message {
  Message(char* data, std::size_t size) : part{data, size} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }

  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Standard))] = {};
  msghdr header = {};
};

[[noreturn]] void fail(int error) {
  throw std::system_error(error, std::generic_category(),
                          "cannot fork a rank of the test");
}

// The end of the socket that the test has.
class Server {
 public:
  Server() {
    int ends[2];
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      fail(errno);
    }
    socket_ = ends[0];
    // The copy survives exec.
    const int end = fcntl(ends[1], F_DUPFD, STDERR_FILENO + 1);
    if (end < 0) fail(errno);
    const Command command{
        "/proc/self/exe",
        {},
        {{kSocket, std::to_string(end)}, {"OMP_NUM_THREADS", "1"}}};
    process_ = std::make_unique<Processes>(
        std::vector<Command>{command}, [](int, Stream, std::string_view line) {
          std::cerr << std::string(line) + "\n";
        });
    ::close(ends[1]);
    ::close(end);
  }

  pid_t fork_rank(const std::vector<std::string>& environment,
                  const Standard& standard) {
    std::string text;
    for (const std::string& variable : environment) {
      text.append(variable).push_back('\0');
    }
    Message message(text.data(), text.size());
    cmsghdr* const descriptors = CMSG_FIRSTHDR(&message.header);
    descriptors->cmsg_level = SOL_SOCKET;
    descriptors->cmsg_type = SCM_RIGHTS;
    descriptors->cmsg_len = CMSG_LEN(sizeof standard);
    std::memcpy(CMSG_DATA(descriptors), &standard, sizeof standard);
    std::lock_guard<std::mutex> lock(mutex_);
    int answer = -EPIPE;  // a pid, or a negative errno
    if (sendmsg(socket_, &message.header, MSG_NOSIGNAL) < 0 ||
        recv(socket_, &answer, sizeof answer, 0) < 0) {
      fail(errno);
    }
    if (answer < 0) fail(-answer);
    return answer;
  }

 private:
  std::mutex mutex_;
  int socket_;
  std::unique_ptr<Processes> process_;
};

// ---- In the server and its forks

void answer(int socket, int value) {
  if (send(socket, &value, sizeof value, MSG_NOSIGNAL) < 0) ::_exit(1);
}

// Forks a process whose parent becomes the nearest subreaper, which is the
// test. Returns whether this is the new process.
bool fork_orphan(int socket) {
  const pid_t between = ::fork();
  if (between < 0) answer(socket, -errno);
  if (between != 0) {
    ::waitpid(between, nullptr, 0);
    return false;
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) answer(socket, -errno);
  if (child != 0) ::_exit(0);
  while (::getppid() == parent) sched_yield();
  return true;
}

// Returns the environment of the next rank to fork.
std::string receive(int socket, Standard& standard) {
  const ssize_t size = recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC);
  if (size <= 0) ::_exit(0);  // the test has ended
  std::string text(size, '\0');
  Message message(text.data(), text.size());
  if (recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != size) ::_exit(1);
  std::memcpy(&standard, CMSG_DATA(CMSG_FIRSTHDR(&message.header)),
              sizeof standard);
  return text;
}

void set_environment(std::string text) {
  static std::string* const variables = new std::string(std::move(text));
  clearenv();
  for (std::size_t at = 0; at < variables->size();
       at += std::strlen(&(*variables)[at]) + 1) {
    putenv(&(*variables)[at]);
  }
}

}  // namespace

pid_t fork_rank(const std::vector<std::string>& environment, int in, int out,
                int err) {
  // Never destroyed: the kernel ends the server with this process.
  static auto* const server = new Server();
  return server->fork_rank(environment, {in, out, err});
}

void serve_ranks() {
  const char* const number = std::getenv(kSocket);
  if (!number) return;
  const int socket = std::stoi(number);
  const pid_t test = ::getppid();
  for (;;) {
    Standard standard;
    std::string environment = receive(socket, standard);
    const bool is_rank = fork_orphan(socket);
    for (int k = 0; k < 3; ++k) {
      if (is_rank) ::dup2(standard[k], k);
      ::close(standard[k]);
    }
    if (!is_rank) continue;
    ::setpgid(0, 0);
    // If the test dies before prctl(), getppid() tells.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != test) ::_exit(1);
    set_environment(std::move(environment));
    answer(socket, ::getpid());
    ::close(socket);
    return;
  }
}

}  // namespace gpipe::testing
