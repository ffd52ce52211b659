#include "tools/launch_screen.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>

#include "gpipe/base/processes.h"

using gpipe::Stream;

namespace {

// Lines of stderr of a failed rank that are repeated at the end.
constexpr std::size_t kLastLines = 20;
constexpr std::size_t kLastLineBytes = 2000;

}  // namespace

void write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t size = write(fd, text.data() + at, text.size() - at);
    if (size > 0) at += static_cast<std::size_t>(size);
    if (size >= 0 || errno == EINTR) continue;
    if (errno == EAGAIN) {  // another program made the terminal non-blocking
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, -1);
      continue;
    }
    // The reader has ended, as with `| head`. Exits as SIGPIPE would do, which
    // this thread does not receive. The kernel then ends the ranks.
    if (errno == EPIPE) std::_Exit(kSignal + SIGPIPE);
    return;  // ignores other errors: a full disk should not end a training
  }
}

int rank_of(int local_rank) {
  return FLAGS_node_rank * FLAGS_nproc + local_rank;
}

void Screen::show(int local_rank, Stream stream, std::string_view text) {
  print(local_rank, stream, text, '\r');
  shows_progress_ = true;
}

void Screen::write(int local_rank, Stream stream, std::string_view line) {
  print(local_rank, stream, line, '\n');
  shows_progress_ = false;
  if (stream == Stream::kStdout) return;
  const int at_fault = gpipe::rank_at_fault(line);
  if (at_fault >= 0 && at_fault != rank_of(local_rank)) {
    at_fault_[local_rank] = at_fault;
  }
  auto& last = last_lines_[local_rank];
  last.emplace_back(line.substr(0, kLastLineBytes));
  if (line.size() > kLastLineBytes) last.back() += " ...";
  if (last.size() > kLastLines) last.pop_front();
}

void Screen::print(int local_rank, Stream stream, std::string_view line,
                   char end) {
  const int fd = stream == Stream::kStdout ? STDOUT_FILENO : STDERR_FILENO;
  const bool is_terminal = isatty(fd);
  std::string text;
  if (is_terminal && shows_progress_) text = "\033[K";  // erases the line
  if (FLAGS_tag_output) {
    const std::string tag = "[" + std::to_string(rank_of(local_rank)) + "]";
    // Six colours that are readable on dark and bright backgrounds.
    text += is_terminal ? "\033[3" + std::to_string(1 + local_rank % 6) + "m" +
                              tag + "\033[0m "
                        : tag + " ";
  }
  text.append(line).push_back(end);
  write_all(fd, text);
}
