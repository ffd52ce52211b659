#include "training/learning_rate.h"

#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

// One item of a specification: "polynomial:1000:2".
class Item {
 public:
  Item(const std::string& spec, const std::string& text)
      : spec_(spec), text_(text), parts_(absl::StrSplit(text, ':')) {}

  const std::string& name() const { return parts_.front(); }
  std::size_t numbers() const { return parts_.size() - 1; }

  void check_numbers(std::size_t count, const char* form) const {
    check(numbers() == count, std::string("should be ") + form);
  }

  int64_t steps(std::size_t k) const {
    const auto value = number<int64_t>(k);
    check(value > 0, "needs a number of steps greater than 0");
    return value;
  }

  double real(std::size_t k, double least, double greatest) const {
    const auto value = number<double>(k);
    check(least <= value && value <= greatest, parts_[k] + " is not between " +
                                                   c10::str(least) + " and " +
                                                   c10::str(greatest));
    return value;
  }

  void check(bool holds, const std::string& wrong) const {
    TORCH_CHECK_VALUE(holds, "learning rate '", spec_, "': '", text_, "' ",
                      wrong);
  }

 private:
  template <typename Number>
  Number number(std::size_t k) const {
    const auto value = internal::read_number<Number>(parts_[k]);
    constexpr const char* kExpected =
        std::is_integral_v<Number> ? "a whole number" : "a number";
    check(value.has_value(), "has '" + parts_[k] + "' instead of " + kExpected);
    return *value;
  }

  const std::string& spec_;
  const std::string text_;
  const std::vector<std::string> parts_;
};

constexpr double kPi = 3.14159265358979323846;

}  // namespace

LearningRateSchedule::LearningRateSchedule(const std::string& spec)
    : spec_(spec) {
  bool has_decay = false, has_floor = false, first = true;
  for (const absl::string_view text : absl::StrSplit(spec, ',')) {
    const Item item(spec_, std::string(text));
    const std::string& name = item.name();
    if (name == "warmup") {
      if (item.numbers() != 2) item.check_numbers(1, "warmup:STEPS");
      item.check(first, "must be the first item");
      warmup_ = item.steps(1);
      if (item.numbers() == 2) warmup_from_ = item.real(2, 0, 1000);
    } else if (name == "floor") {
      item.check_numbers(1, "floor:FACTOR");
      item.check(!has_floor, "appears twice");
      has_floor = true;
      floor_ = item.real(1, 0, 1);
    } else {
      if (name == "constant") {
        item.check_numbers(0, "constant");
      } else if (name == "cosine") {
        item.check_numbers(1, "cosine:STEPS");
        decay_ = Decay::kCosine;
        steps_ = item.steps(1);
      } else if (name == "linear") {
        item.check_numbers(1, "linear:STEPS");
        decay_ = Decay::kPolynomial;
        steps_ = item.steps(1);
      } else if (name == "polynomial") {
        item.check_numbers(2, "polynomial:STEPS:POWER");
        decay_ = Decay::kPolynomial;
        steps_ = item.steps(1);
        power_ = item.real(2, 0, 100);
      } else if (name == "step") {
        item.check_numbers(2, "step:STEPS:FACTOR");
        decay_ = Decay::kStep;
        steps_ = item.steps(1);
        gamma_ = item.real(2, 0, 1);
      } else if (name == "milestones") {
        const std::size_t last = item.numbers();
        item.check(last >= 2, "should be milestones:STEP:...:FACTOR");
        decay_ = Decay::kMilestones;
        for (std::size_t k = 1; k < last; ++k) {
          milestones_.push_back(item.steps(k));
        }
        gamma_ = item.real(last, 0, 1);
      } else {
        item.check(false,
                   "is none of warmup, constant, cosine, linear, polynomial, "
                   "step, milestones, floor");
      }
      item.check(!has_decay,
                 "is a second schedule after the warm-up; give one");
      has_decay = true;
    }
    first = false;
  }
  TORCH_CHECK_VALUE(!has_floor || decay_ != Decay::kConstant, "learning rate '",
                    spec_,
                    "': a floor needs cosine, linear, polynomial, step or "
                    "milestones");
}

double LearningRateSchedule::factor(int64_t step) const {
  TORCH_CHECK_VALUE(step >= 0, "step ", step,
                    " is negative and has no learning rate");
  if (step < warmup_) {
    const auto steps = static_cast<double>(warmup_);
    if (!warmup_from_) return static_cast<double>(step + 1) / steps;
    return *warmup_from_ +
           (1 - *warmup_from_) * static_cast<double>(step) / steps;
  }
  const int64_t after = step - warmup_;
  if (decay_ == Decay::kConstant) return 1;
  if (decay_ == Decay::kStep) {
    const double passed = static_cast<double>(after / steps_);
    return std::max(floor_, std::pow(gamma_, passed));
  }
  if (decay_ == Decay::kMilestones) {
    const auto passed =
        std::count_if(milestones_.begin(), milestones_.end(),
                      [&](int64_t milestone) { return milestone <= step; });
    return std::max(floor_, std::pow(gamma_, passed));
  }
  const double x = static_cast<double>(std::min(after, steps_)) /
                   static_cast<double>(steps_);
  const double left = decay_ == Decay::kCosine ? (1 + std::cos(kPi * x)) / 2
                                               : std::pow(1 - x, power_);
  return floor_ + (1 - floor_) * left;
}

LearningRates::LearningRates(LearningRateSchedule schedule,
                             const torch::optim::Optimizer& optimizer)
    : schedule_(std::move(schedule)) {
  for (const auto& group : optimizer.param_groups()) {
    base_.push_back(group.options().get_lr());
  }
}

void LearningRates::set(torch::optim::Optimizer& optimizer,
                        int64_t step) const {
  auto& groups = optimizer.param_groups();
  TORCH_CHECK_VALUE(groups.size() == base_.size(), "the optimizer has ",
                    groups.size(), " parameter groups, expected ",
                    base_.size());
  const double factor = schedule_.factor(step);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g].options().set_lr(base_[g] * factor);
  }
}

}  // namespace gpipe
