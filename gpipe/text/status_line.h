// How far a program is: a line on a terminal that is written over. No LibTorch.
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace gpipe {

// "01:02:03", of seconds; negative ones are 0. Threads: pure function.
std::string clock_text(double seconds);

// On a terminal the last line is written over, five times a second at most;
// else, so that logs stay short, a line every ten seconds goes to where lines
// that stay go.
//
// Threads: one at a time.
class StatusLine {
 public:
  // `print`: writes a line that stays. `to`: where lines are written over, if
  // it is a terminal (or `terminal` says so).
  explicit StatusLine(std::function<void(const std::string&)> print,
                      std::FILE* to = stderr,
                      std::optional<bool> terminal = std::nullopt);
  // Erases the line.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Shows a line if it is time for one; only then is `text` called. What does
  // not fit the terminal's width is cut off.
  void update(const std::function<std::string()>& text);

  // Prints a line that stays.
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
