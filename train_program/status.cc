#include "train_program/status.h"

#include <array>
#include <cstddef>
#include <cstdio>

#include "gpipe/text/status_line.h"

namespace gpipe::train_program {
namespace {

constexpr std::size_t kBar = 20;

}  // namespace

std::string to_text(const Progress& progress) {
  const double done = progress.steps > 0
                          ? static_cast<double>(progress.step) /
                                static_cast<double>(progress.steps)
                          : 1;
  const auto full = static_cast<std::size_t>(done * kBar);
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(),
                "step %lld/%lld | epoch %.2f | loss %.4g | %.1f %s/s | ",
                static_cast<long long>(progress.step),
                static_cast<long long>(progress.steps), progress.epoch,
                progress.loss, progress.rows_per_second,
                progress.rows_name.c_str());
  std::string line = "[" + std::string(full, '#') +
                     std::string(kBar - full, '.') + "] " + text.data() +
                     clock_text(progress.seconds);
  const int64_t made = progress.step - progress.first;
  if (made > 0) {
    const double left = progress.seconds / static_cast<double>(made) *
                        static_cast<double>(progress.steps - progress.step);
    line += " | " + clock_text(left) + " left";
  }
  return line;
}

}  // namespace gpipe::train_program
