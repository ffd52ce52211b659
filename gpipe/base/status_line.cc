#include "gpipe/base/status_line.h"

#include <absl/strings/str_format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe {
namespace {

// The codes that move to the start of the line and erase it (ECMA-48).
constexpr char kRewrite[] = "\r\x1b[K";

// The shortest times between two lines: short enough to look alive, and long
// enough to cost nothing.
constexpr std::chrono::milliseconds kOnTerminal(200);
constexpr std::chrono::milliseconds kElsewhere(10000);

// Returns the number of characters that fit into a line. A longer line would
// wrap, and could not be overwritten.
std::size_t width_of(std::FILE* file) {
  winsize size{};
  const bool known =
      ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1U : std::string::npos;
}

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(
      std::llround(std::min(std::max(0.0, seconds), 1e15)));
  return absl::StrFormat("%02d:%02d:%02d", whole / 3600, whole / 60 % 60,
                         whole % 60);
}

std::string clock_text(double seconds, double done) {
  const std::string text = clock_text(seconds);
  if (done <= 0) return text;
  return text + " | " + clock_text(seconds * (1 - done) / done) + " left";
}

StatusLine::StatusLine(std::function<void(const std::string&)> print,
                       std::FILE* to, std::optional<bool> terminal)
    : print_(std::move(print)),
      to_(to),
      terminal_(terminal.value_or(isatty(fileno(to)) == 1)),
      last_(Clock::now()) {}

StatusLine::~StatusLine() { erase(); }

void StatusLine::update(const std::function<std::string()>& text) {
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? kOnTerminal : kElsewhere)) return;
  last_ = now;
  if (!terminal_) {
    print_(text());
    return;
  }
  const std::string line = text().substr(0, width_of(to_));
  std::fprintf(to_, "%s%s", kRewrite, line.c_str());
  std::fflush(to_);
}

void StatusLine::say(const std::string& text) {
  erase();
  print_(text);
}

void StatusLine::erase() {
  if (!terminal_) return;
  std::fputs(kRewrite, to_);
  std::fflush(to_);
}

}  // namespace gpipe
