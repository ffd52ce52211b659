#include "training/program/saved_run.h"

#include <c10/util/Exception.h>

#include <sstream>
#include <utility>

#include "models/weights/state_dict.h"
#include "training/generator_states.h"
#include "training/optimizer_state.h"
#include "training/run_state.h"

namespace gpipe::train_program {
namespace {

constexpr char kScaler[] = "grad_scaler";  // GradScaler::State
constexpr char kUntested[] = "untested";   // Standing::untested

std::string text_of(const GradScaler::State& state) {
  std::ostringstream text;
  text.precision(17);
  text << state.scale << " " << state.steps_since;
  return text.str();
}

GradScaler::State scaler_state(const std::string& text) {
  GradScaler::State state;
  std::istringstream(text) >> state.scale >> state.steps_since;
  return state;
}

std::string text_of(const std::map<std::string, double>& values) {
  std::ostringstream text;
  text.precision(17);
  for (const auto& [name, value] : values) text << name << " " << value << " ";
  return text.str();
}

// Reads with std::stod, since streams cannot read "nan" and "inf".
std::map<std::string, double> values_of(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream stream(text);
  for (std::string name, value; stream >> name >> value;) {
    values[name] = std::stod(value);
  }
  return values;
}

}  // namespace

SavedRun::SavedRun(const Options& options, int rank, int ranks,
                   AllGather all_gather,
                   std::function<void(const std::string&)> report)
    : how_(options.resume),
      folder_(options.run_dir),
      shard_optimizer_(options.shard_optimizer) {
  if (options.run_dir.empty()) return;
  RunShard shard;
  shard.index = rank;
  shard.count = ranks;
  shard.all_gather = std::move(all_gather);
  files_.emplace(options.run_dir, RunFilesOptions()
                                      .keep(options.keep)
                                      .report(std::move(report))
                                      .shard(std::move(shard)));
}

std::optional<FlagValues> SavedRun::flags() {
  if (!files_) return std::nullopt;
  const auto state = files_->resume(how_, RunFiles::Names());
  const auto steps = files_->steps();
  // Otherwise a later --resume=auto would load the other run's step.
  TORCH_CHECK_VALUE(
      how_ == "auto" || steps.empty() ||
          steps.back() <= (state ? state->step : 0),
      "--resume=", how_, ": ", folder_of(steps.back()),
      " is of an earlier run, and later than the start of this one; move it "
      "away, or use another --run_dir");
  found_ = state.has_value();
  if (!steps.empty()) check_found(found_);
  if (!state) return std::nullopt;
  return state->metadata;
}

// Throws if no step is complete. Starting a new run in the same folder would
// empty the log and ignore --weights.
void SavedRun::check_found(bool found) const {
  TORCH_CHECK_VALUE(found, "--resume=", how_, ": all steps in ", folder_,
                    " are damaged (see the lines above). To start a new run, "
                    "move them away or use another --run_dir");
}

Standing SavedRun::load(Engine& engine, torch::optim::Optimizer& optimizer,
                        GradScaler* scaler) {
  if (!files_) return {};
  const auto keys = state_dict(engine.module()).keys();
  const auto state =
      files_->resume(how_, RunFiles::Names(keys.begin(), keys.end()));
  if (found_) check_found(state.has_value());
  if (!state) return {};
  load_state_dict(engine.module(), state->model);
  load_optimizer_state(optimizer, state->optimizer.value(),
                       engine.module().named_parameters());
  set_generator_states(state->generators);
  const auto of_scaler = state->metadata.find(kScaler);
  if (scaler && of_scaler != state->metadata.end()) {
    scaler->set_state(scaler_state(of_scaler->second));
  }
  Standing standing{state->step, std::nullopt};
  const auto untested = state->metadata.find(kUntested);
  if (untested != state->metadata.end()) {
    standing.untested = values_of(untested->second);
  }
  return standing;
}

void SavedRun::save(const Standing& standing, Engine& engine,
                    const torch::optim::Optimizer& optimizer,
                    const GradScaler* scaler, FlagValues flags,
                    bool in_background) {
  RunState state;
  state.step = standing.step;
  if (engine.replica() == 0) state.model = state_dict(engine.module());
  if (engine.replica() == 0 || shard_optimizer_) {
    state.optimizer =
        optimizer_state(optimizer, engine.module().named_parameters());
  }
  state.generators = generator_states();
  if (scaler) flags[kScaler] = text_of(scaler->state());
  if (standing.untested) flags[kUntested] = text_of(*standing.untested);
  state.metadata = std::move(flags);
  if (in_background) {
    files_->save_in_background(state);
  } else {
    files_->save(state);
  }
}

void SavedRun::wait() {
  if (files_) files_->wait();
}

}  // namespace gpipe::train_program
