#include "train_program/plan_report.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/text/format.h"
#include "gpipe/text/units.h"

namespace gpipe::train_program {

std::optional<std::string> PlanReport::add(double seconds) {
  constexpr std::size_t kSteps = 10;
  if (predicted_ <= 0) return std::nullopt;
  if (is_first_) {
    is_first_ = false;
    return std::nullopt;
  }
  seconds_.push_back(seconds);
  return seconds_.size() == kSteps ? finish() : std::nullopt;
}

std::optional<std::string> PlanReport::finish() {
  if (predicted_ <= 0 || seconds_.empty()) return std::nullopt;
  std::sort(seconds_.begin(), seconds_.end());
  const double median = seconds_[seconds_.size() / 2];
  std::string line = "forward and backward take " + seconds_text(median) +
                     " (median of " + std::to_string(seconds_.size()) + "); " +
                     seconds_text(predicted_) + " were predicted";
  if (median > 0)
    line += format(" (%+.1f %%)", 100 * (predicted_ / median - 1));
  predicted_ = 0;
  return line;
}

}  // namespace gpipe::train_program
