#include "training/program/saved_run.h"

#include <c10/util/Exception.h>

#include <set>
#include <sstream>
#include <utility>

#include "models/weights/state_dict.h"
#include "training/generator_states.h"
#include "training/optimizer_state.h"
#include "training/program/lora_setup.h"
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

// Returns the tensors of a model that run checkpoints have. `adapters_only`:
// without the frozen parameters, which do not change.
StateDict saved_tensors(const torch::nn::Module& module, bool adapters_only) {
  const StateDict all = state_dict(module);
  if (!adapters_only) return all;
  std::set<std::string> frozen;
  for (const auto& each : module.named_parameters()) {
    if (!each.value().requires_grad()) frozen.insert(each.key());
  }
  StateDict saved;
  for (const auto& each : all) {
    if (!frozen.contains(each.key())) saved.insert(each.key(), each.value());
  }
  return saved;
}

// Copies the tensors of a run checkpoint into a model.
void load_tensors(torch::nn::Module& module, const StateDict& wanted,
                  const StateDict& saved, bool adapters_only) {
  if (!adapters_only) {
    load_state_dict(module, saved);
    return;
  }
  for (const auto& each : wanted) {
    TORCH_CHECK_VALUE(saved.contains(each.key()), "the run checkpoint lacks '",
                      each.key(), "'; use another --run_dir");
  }
  if (saved.is_empty()) return;  // this rank has no adapters
  load_state_dict(module, saved, LoadOptions().strict(false));
}

}  // namespace

SavedRun::SavedRun(const Options& options, int rank, int ranks,
                   AllGather all_gather,
                   std::function<void(const std::string&)> report)
    : how_(options.resume), folder_(options.run_dir), options_(options) {
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
  const bool adapters_only = trains_adapters(options_);
  const StateDict wanted = saved_tensors(engine.module(), adapters_only);
  const auto keys = wanted.keys();
  const auto state =
      files_->resume(how_, RunFiles::Names(keys.begin(), keys.end()));
  if (found_) check_found(state.has_value());
  if (!state) return {};
  load_tensors(engine.module(), wanted, state->model, adapters_only);
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
  const bool adapters_only = trains_adapters(options_);
  if (engine.replica() == 0) {
    state.model = saved_tensors(engine.module(), adapters_only);
  }
  if (engine.replica() == 0 || options_.shard_optimizer) {
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
  if (adapters_only) save_adapter(engine, options_);
}

void SavedRun::wait() {
  if (files_) files_->wait();
}

}  // namespace gpipe::train_program
