// Shows the progress of a program in a line that is overwritten. No LibTorch.
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace gpipe {

// Returns seconds as hours, minutes and seconds: "01:02:03". Negative values
// count as 0, and values above 1e15 as 1e15. Thread-safe.
std::string clock_text(double seconds);

// Returns "00:01:05 | 00:01:37 left" for the time since the start. The time
// left is estimated from the part that is done, in [0, 1]. It is missing as
// long as nothing is done. Thread-safe.
std::string clock_text(double seconds, double done);

// A line that shows a program's progress. On a terminal it is overwritten at
// most five times a second. Otherwise a line is printed every ten seconds, so
// that logs stay short.
//
// Not thread-safe.
class StatusLine {
 public:
  // `print`: writes a permanent line. `to`: the file for the overwritten line,
  // used if it is a terminal. `terminal`: whether `to` is a terminal; detected
  // by default.
  explicit StatusLine(std::function<void(const std::string&)> print,
                      std::FILE* to = stderr,
                      std::optional<bool> terminal = std::nullopt);
  // Erases the line.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Shows a line if enough time has passed since the last one. `text` is called
  // only then. The line is cut to the width of the terminal.
  void update(const std::function<std::string()>& text);

  // Prints a permanent line.
  void say(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  void erase();

  const std::function<void(const std::string&)> print_;
  std::FILE* const to_;
  const bool terminal_;
  Clock::time_point last_;
};

}  // namespace gpipe
