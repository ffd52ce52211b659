#include "training/program/plan_report.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe::train_program {

PlanReport::PlanReport(double predicted, StepMemory memory, Gather gather)
    : predicted_(predicted),
      memory_(std::move(memory)),
      gather_(std::move(gather)) {}

void PlanReport::begin() {
  if (predicted_ > 0) memory_.begin();
}

std::optional<std::string> PlanReport::end(double seconds) {
  constexpr std::size_t kSteps = 10;
  if (predicted_ <= 0) return std::nullopt;
  if (is_first_) {
    is_first_ = false;
    return std::nullopt;
  }
  memory_.end();
  seconds_.push_back(seconds);
  return seconds_.size() == kSteps ? finish() : std::nullopt;
}

std::optional<std::string> PlanReport::finish() {
  if (predicted_ <= 0 || seconds_.empty()) return std::nullopt;
  std::sort(seconds_.begin(), seconds_.end());
  const double median = seconds_[seconds_.size() / 2];
  std::string text = "forward and backward take " + seconds_text(median) +
                     " (median of " + std::to_string(seconds_.size()) + "); " +
                     seconds_text(predicted_) + " were predicted";
  if (median > 0) {
    text += absl::StrFormat(" (%+.1f %%)", 100 * (predicted_ / median - 1));
  }
  predicted_ = 0;
  for (const std::string& lines :
       gather_(absl::StrJoin(memory_.lines(), "\n"))) {
    if (!lines.empty()) text += "\n" + lines;
  }
  return text;
}

}  // namespace gpipe::train_program
