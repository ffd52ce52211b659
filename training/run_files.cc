#include "training/run_files.h"

#include <absl/strings/str_join.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "gpipe/base/text.h"
#include "training/files/step_folder.h"
#include "training/files/step_writer.h"
#include "training/files/tensor_file.h"

namespace gpipe {

RunFiles::RunFiles(std::string folder, RunFilesOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  const RunShard& shard = options_.shard();
  TORCH_CHECK_VALUE(!folder_.empty(),
                    "the folder of a run is an empty text; give a path");
  TORCH_CHECK_VALUE(options_.keep() >= 1, "keep is ", options_.keep(),
                    ", should be at least 1");
  TORCH_CHECK_VALUE(
      0 <= shard.index && shard.index < shard.count,
      "the index of a shard must be at least 0 and below its count; it is ",
      shard.index, " of ", shard.count);
  TORCH_CHECK_VALUE(
      shard.count == 1 || shard.all_gather,
      "a RunShard of several processes needs an all_gather function");
}

RunFiles::~RunFiles() {
  if (!saver_) return;
  try {
    finish();
  } catch (...) {
    // report() of the options throws.
  }
}

RunFiles::RunFiles(RunFiles&&) noexcept = default;

void RunFiles::check_shared() {
  wait();
  const RunShard& shard = options_.shard();
  if (shard.count > 1) internal::share_folder(folder_, shard);
}

void RunFiles::save(const RunState& state) {
  wait();
  const auto writer = begin(state.step);
  const auto parts = together([&] { return writer->write_part(state); });
  const bool first = options_.shard().index == 0;
  together([&] {
    if (first) writer->complete(parts);
    return "";
  });
  if (!first) return;
  writer->remove_old_steps(options_.keep(),
                           [this](const std::string& line) { report(line); });
}

void RunFiles::save_in_background(const RunState& state) {
  wait();
  auto writer = begin(state.step);
  if (!saver_) saver_ = std::make_unique<internal::BackgroundSaver>();
  try {
    together([&] {
      saver_->start(std::move(writer), state, options_.keep());
      return "";
    });
  } catch (...) {
    finish();
    throw;
  }
}

void RunFiles::wait() {
  if (!saver_ || !saver_->is_busy()) return;
  try {
    together([&] {
      saver_->wait_written();
      return "";
    });
    together([&] {
      saver_->wait_complete();
      return "";
    });
  } catch (...) {
    finish();
    throw;
  }
  finish();
}

void RunFiles::finish() {
  for (const std::string& line : saver_->finish()) report(line);
}

std::unique_ptr<internal::StepWriter> RunFiles::begin(int64_t step) {
  const RunShard& shard = options_.shard();
  auto writer = std::make_unique<internal::StepWriter>(folder_, step, shard);
  const std::string name = together([&] {
    TORCH_CHECK_VALUE(step >= 0, "step ", step,
                      " cannot be saved: it is negative");
    if (shard.index > 0) return std::string();
    return writer->begin([this](const std::string& line) { report(line); });
  })[0];
  writer->set_name(name);
  return writer;
}

std::optional<RunState> RunFiles::load_latest(
    const std::optional<Names>& names) {
  // A run that saves meanwhile removes steps, and has then made others.
  std::vector<int64_t> steps = common_steps(), seen;
  for (; steps != seen; steps = common_steps()) {
    seen = steps;
    for (; !steps.empty(); steps.pop_back()) {
      std::optional<RunState> state;
      const std::string damage = damage_of(steps.back(), names, state);
      if (damage.empty()) return state;
      report("step " + std::to_string(steps.back()) + " is damaged: " + damage +
             (steps.size() > 1
                  ? "; trying step " + std::to_string(steps[steps.size() - 2])
                  : "; there is none before it"));
    }
  }
  return std::nullopt;
}

RunState RunFiles::load(int64_t step, const std::optional<Names>& names) {
  const std::vector<int64_t> steps = common_steps();
  TORCH_CHECK_VALUE(std::find(steps.begin(), steps.end(), step) != steps.end(),
                    folder_, " has no step ", step, "; its steps are ",
                    c10::IntArrayRef(steps));
  std::optional<RunState> state;
  const std::string damage = damage_of(step, names, state);
  TORCH_CHECK_VALUE(damage.empty(), "step ", step, " is damaged: ", damage,
                    "; the steps in ", folder_, " are ",
                    c10::IntArrayRef(steps));
  return std::move(*state);
}

std::optional<RunState> RunFiles::resume(const std::string& how,
                                         const std::optional<Names>& names) {
  wait();
  if (how == "auto") return load_latest(names);
  std::optional<RunState> state;
  if (!how.empty() && how != "none") {
    const auto step = internal::number_of(how);
    TORCH_CHECK_VALUE(step, "resume is '", how,
                      "', should be auto, none or the number of a step");
    state = load(*step, names);
  }
  const std::string later =
      internal::later_step(folder_, common_steps(), state ? state->step : 0);
  if (!later.empty()) report(later);
  return state;
}

std::vector<int64_t> RunFiles::steps() const {
  return internal::steps_in(folder_);
}

std::string RunFiles::folder_of(int64_t step) const {
  return folder_ + "/" + internal::step_name(step);
}

std::vector<std::string> RunFiles::together(
    const std::function<std::string()>& body) {
  return internal::together(options_.shard(), body);
}

void RunFiles::report(const std::string& line) const {
  if (options_.report()) options_.report()(line);
}

std::vector<int64_t> RunFiles::common_steps() {
  wait();
  return parse_numbers(
      "steps", together([&] {
        return options_.shard().index > 0 ? "" : absl::StrJoin(steps(), ",");
      })[0]);
}

// Returns "" if all processes could read what they asked for. An error that is
// no damage has its type on all of them, too.
std::string RunFiles::damage_of(int64_t step, const std::optional<Names>& names,
                                std::optional<RunState>& state) {
  const RunShard& shard = options_.shard();
  constexpr char kRefused = '!', kDamaged = '-';  // the first character
  const auto words = together([&]() -> std::string {
    try {
      state = internal::read_state(folder_of(step), step, names, shard);
      return "";
    } catch (const internal::Damage& damage) {
      return kDamaged + std::string(damage.what());
    } catch (const c10::ValueError& error) {
      return kRefused + std::string(error.what_without_backtrace());
    }
  });
  std::string damage;
  for (const std::string& each : words) {
    TORCH_CHECK_VALUE(!each.starts_with(kRefused), each.substr(1));
    if (damage.empty() && !each.empty()) damage = each.substr(1);
  }
  return damage;
}

}  // namespace gpipe
