#include "benchmarks/harness/progress.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace gpipe::benchmarks {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

// To the start of the line, and erase it (ECMA-48).
constexpr char kRewrite[] = "\r\x1b[K";

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%02lld:%02lld:%02lld",
                static_cast<long long>(whole / 3600),
                static_cast<long long>(whole / 60 % 60),
                static_cast<long long>(whole % 60));
  return buffer;
}

std::string progress_line(const std::string& label, double seconds,
                          int64_t epoch, int64_t epochs, double done_of_epoch,
                          double samples_per_second) {
  char buffer[160];
  std::snprintf(buffer, sizeof(buffer),
                " | epoch %lld/%lld (%.0f%%) | %.1f samples/s",
                static_cast<long long>(epoch), static_cast<long long>(epochs),
                100 * done_of_epoch, samples_per_second);
  std::string line = label + " | " + clock_text(seconds) + buffer;
  const double done = (static_cast<double>(epoch - 1) + done_of_epoch) /
                      static_cast<double>(epochs);
  if (done > 0) {
    line += " | " + clock_text(seconds * (1 - done) / done) + " left";
  }
  return line;
}

Progress::Progress(std::string label, int64_t epochs)
    : label_(std::move(label)),
      epochs_(epochs),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (terminal_) std::fputs(kRewrite, stderr);
}

void Progress::update(int64_t epoch, double done, double samples_per_second) {
  // Often enough to be alive, seldom enough to cost nothing.
  if (seconds_since(last_) < (terminal_ ? 0.2 : 10)) return;
  last_ = Clock::now();
  const std::string line = progress_line(label_, seconds_since(start_), epoch,
                                         epochs_, done, samples_per_second);
  if (terminal_) {
    std::fprintf(stderr, "%s%s", kRewrite, line.c_str());
  } else {
    LOG(INFO) << line;
  }
}

void Progress::say(const std::string& text) {
  if (terminal_) std::fputs(kRewrite, stderr);
  LOG(INFO) << label_ << " | " << text;
}

}  // namespace gpipe::benchmarks
