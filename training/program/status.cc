#include "training/program/status.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gpipe/base/status_line.h"

namespace gpipe::train_program {
namespace {

constexpr std::size_t kBar = 20;

}  // namespace

std::string number_text(double value) {
  return std::isnan(value) ? "nan"
                           : absl::StrFormat("%.4g", value);  // not "-nan"
}

std::string to_text(const Progress& progress) {
  const double done = progress.steps > 0
                          ? static_cast<double>(progress.step) /
                                static_cast<double>(progress.steps)
                          : 1;
  const auto full = static_cast<std::size_t>(done * kBar);
  const auto all = static_cast<double>(progress.steps - progress.first);
  const auto made = static_cast<double>(progress.step - progress.first);
  return "[" + std::string(full, '#') + std::string(kBar - full, '.') +
         absl::StrFormat(
             "] step %ld/%ld | epoch %.2f | loss %.4g | %.1f %s/s | ",
             progress.step, progress.steps, progress.epoch, progress.loss,
             progress.rows_per_second, progress.rows_name.c_str()) +
         clock_text(progress.seconds, made / std::max(all, 1.0));
}

}  // namespace gpipe::train_program
