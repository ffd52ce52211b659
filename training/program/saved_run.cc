#include "training/program/saved_run.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/named.h"
#include "models/weights/run_shard.h"
#include "models/weights/safetensors_file.h"
#include "models/weights/state_dict.h"
#include "training/files/manifest.h"
#include "training/files/step_folder.h"
#include "training/generator_states.h"
#include "training/optimizer_state.h"
#include "training/program/weights.h"
#include "training/run_state.h"

namespace gpipe::train_program {

// ---- Flags

namespace {

// Returns how a run of `model`, which is trained on `kind`, treats an option.
OptionScope scope_of(const OptionRow& row, const std::string& model,
                     models::DataKind kind) {
  const auto fixed_if = [](bool has) {
    return has ? OptionScope::kFixed : OptionScope::kProcess;
  };
  if (!row.model.empty()) return fixed_if(row.model == model);
  using models::DataKind;
  if (row.scope == OptionScope::kFixedForText) {
    return fixed_if(kind == DataKind::kText);
  }
  if (row.scope == OptionScope::kFixedForImages) {
    return fixed_if(kind == DataKind::kImages || kind == DataKind::kMasks);
  }
  return row.scope;
}

// Returns the flags of a scope.
FlagValues flags_of(OptionScope scope, const Options& options,
                    const Task& task) {
  FlagValues flags;
  const models::DataKind kind = task.source().kind();
  for (const OptionRow& row : option_rows()) {
    if (scope_of(row, options.model, kind) != scope) continue;
    flags["--" + row.name] = value_of(row, options);
  }
  return flags;
}

}  // namespace

std::vector<std::string> unused_flags(const Options& options,
                                      const ModelSource& source) {
  using models::DataKind;
  const DataKind kind = source.kind();
  const bool images = kind == DataKind::kImages || kind == DataKind::kMasks;
  struct Use {
    std::set<std::string> names;
    bool used;
    std::string needs;
  };
  const Use uses[] = {
      {{"size", "flip", "skip_broken"}, images, "images"},
      {{"crop"}, kind == DataKind::kImages, "labelled images"},
      {{"length", "bucket"}, kind == DataKind::kText, "a text"},
      {{"output", "max_crossing", "eval_model"},
       source.file() != nullptr,
       "a --model that is a .pt2 file"},
      {{"eval_model", "train_score", "sample"},
       options.eval_every >= 0,
       "an --eval_every of 0 or more"},
      {{"transformer_dropout"},
       options.model == "transformer",
       "--model=transformer"},
      {{"keep", "save_every", "save_in_background"},
       !options.run_dir.empty(),
       "--run_dir"},
      {{"shard_size"}, !options.save_weights.empty(), "--save_weights"},
      {{"lora_wrapper"},
       trains_adapters(options) || !options.save_weights.empty(),
       "--lora_rank, --adapter or --save_weights"},
      {{"offload"}, options.checkpoint != "always", "another --checkpoint"},
      {{"trace_step"},
       !options.trace.empty() || !options.kineto.empty(),
       "--trace or --kineto"},
      {{"momentum"},
       options.optimizer == "sgd" || options.optimizer == "rmsprop",
       "--optimizer=sgd or --optimizer=rmsprop"},
      {{"epochs"}, options.steps == 0, "--steps=0"},
      {{"partitions"}, !options.distributed, "a run without --distributed"},
      {{"transfers", "own_address", "timeout", "heartbeat_timeout"},
       options.distributed,
       "--distributed"},
      {{"collective_sums"},
       options.transfers != "host",
       "other --transfers than host"},
      {{"shard_optimizer", "collective_sums"},
       options.data_parallel > 1,
       "a --data_parallel of 2 or more"},
  };
  std::vector<std::string> lines;
  for (const OptionRow& row : option_rows()) {
    const std::string value = value_of(row, options);
    if (value == value_of(row, Options())) continue;
    std::string needs;
    if (!row.model.empty() && row.model != options.model) {
      needs = "--model=" + row.model;
    }
    for (const Use& use : uses) {
      if (!use.used && use.names.count(row.name) > 0) needs = use.needs;
    }
    if (needs.empty()) continue;
    lines.push_back(absl::StrCat("--", row.name, "=", value,
                                 " changes nothing: it needs ", needs));
  }
  return lines;
}

FlagValues fixed_flags(const Options& options, const Task& task) {
  FlagValues flags = flags_of(OptionScope::kFixed, options, task);
  flags["--model"] = task.source().description();
  // The description of the data, not its path, since data may be moved.
  flags["--data_dir"] = task.data();
  flags["the data"] = "of checksum " + std::to_string(task.checksum());
  return flags;
}

FlagValues changeable_flags(const Options& options, const Task& task) {
  return flags_of(OptionScope::kChangeable, options, task);
}

FlagValues shared_flags(const Options& options, const Task& task) {
  FlagValues flags = flags_of(OptionScope::kGiven, options, task);
  for (auto& [flag, value] : flags) value = value.empty() ? "" : "given";
  flags.merge(flags_of(OptionScope::kRun, options, task));
  flags.merge(fixed_flags(options, task));
  flags.merge(changeable_flags(options, task));
  return flags;
}

std::string bytes_of(const FlagValues& flags) {
  std::string bytes;
  for (const auto& [flag, value] : flags) {
    bytes += flag + '\0' + value + '\0';
  }
  return bytes;
}

FlagValues parse_flag_values(const std::string& bytes) {
  FlagValues flags;
  std::istringstream stream(bytes);
  for (std::string flag, value;
       std::getline(stream, flag, '\0') && std::getline(stream, value, '\0');) {
    flags[flag] = value;
  }
  return flags;
}

void check_same_flags(const std::vector<FlagValues>& all) {
  std::vector<std::string> wrong;
  for (const auto& [flag, value] : all.front()) {
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const auto found = all[rank].find(flag);
      if (found == all[rank].end() || found->second == value) continue;
      wrong.push_back(absl::StrCat(flag, " is '", found->second,
                                   "' in process ", rank, " and '", value,
                                   "' in process 0"));
      break;
    }
  }
  TORCH_CHECK_VALUE(wrong.empty(), absl::StrJoin(wrong, "; "),
                    ". Give all processes the same flags and data");
}

namespace {

// Calls describe(flag, before, now) for each flag that differs, and returns the
// results.
template <typename Describe>
std::vector<std::string> differences(const FlagValues& saved,
                                     const FlagValues& now,
                                     const Describe& describe) {
  std::vector<std::string> texts;
  for (const auto& [flag, value] : now) {
    const auto found = saved.find(flag);
    if (found == saved.end() || found->second == value) continue;
    texts.push_back(describe(flag, found->second, value));
  }
  return texts;
}

}  // namespace

void check_fixed_flags(const FlagValues& saved, const FlagValues& now,
                       const std::string& folder) {
  const auto wrong = differences(
      saved, now, [](const auto& flag, const auto& before, const auto& value) {
        return absl::StrCat(flag, " was '", before, "' and is '", value, "'");
      });
  TORCH_CHECK_VALUE(wrong.empty(), folder, " contains a run with other flags: ",
                    absl::StrJoin(wrong, "; "),
                    ". Use the flags of that run, or another --run_dir");
}

std::vector<std::string> changes(const FlagValues& saved,
                                 const FlagValues& now) {
  return differences(
      saved, now, [](const auto& flag, const auto& before, const auto& value) {
        return absl::StrCat("from here on ", flag, " is '", value,
                            "'; it was '", before, "'");
      });
}

void check_same_in_all(const RunProcesses& processes, const FlagValues& mine) {
  std::vector<FlagValues> all;
  for (const std::string& each : processes.all_gather(bytes_of(mine))) {
    all.push_back(parse_flag_values(each));
  }
  check_same_flags(all);
}

// ---- Run checkpoints

namespace {

constexpr char kScaler[] = "grad_scaler";    // GradScaler::State
constexpr char kUntested[] = "untested";     // Standing::untested
constexpr char kNext[] = "next_evaluation";  // of Standing::next

// Converts numbers with names to text and back.
std::string text_of(const std::map<std::string, double>& values) {
  return absl::StrJoin(values, " ", [](std::string* text, const auto& each) {
    absl::StrAppend(text, each.first, " ", exact_text({each.second}));
  });
}

std::map<std::string, double> values_of(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream stream(text);
  for (std::string name, value; stream >> name >> value;) {
    values[name] = parse_exact(value).at(0);
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

SavedRun::SavedRun(const Options& options, const RunProcesses& processes,
                   std::function<void(const std::string&)> report)
    : options_(options) {
  if (options.run_dir.empty()) return;
  files_.emplace(options.run_dir, RunFilesOptions()
                                      .keep(options.keep)
                                      .report(std::move(report))
                                      .shard(processes.shard("a saved step")));
  files_->check_shared();
}

std::optional<FlagValues> SavedRun::flags() {
  if (!files_) return std::nullopt;
  const auto state = files_->resume(options_.resume, RunFiles::Names());
  const auto steps = files_->common_steps();
  // Otherwise a later --resume=auto would load the other run's step.
  const std::string later =
      internal::later_step(options_.run_dir, steps, state ? state->step : 0);
  TORCH_CHECK_VALUE(options_.resume == "auto" || later.empty(),
                    "--resume=", options_.resume, ": ", later);
  found_ = state.has_value();
  if (!steps.empty()) check_found(found_);
  if (!state) return std::nullopt;
  return state->metadata;
}

// Throws if no step is complete. Starting a new run in the same folder would
// empty the log and ignore --weights.
void SavedRun::check_found(bool found) const {
  TORCH_CHECK_VALUE(found, "--resume=", options_.resume, ": all steps in ",
                    options_.run_dir,
                    " are damaged (see the lines above). To start a new run, "
                    "move them away or use another --run_dir");
}

Standing SavedRun::load(Engine& engine, torch::optim::Optimizer& optimizer,
                        GradScaler* scaler) {
  if (!files_) return {};
  const bool adapters_only = trains_adapters(options_);
  const StateDict wanted = saved_tensors(engine.module(), adapters_only);
  const auto keys = wanted.keys();
  const auto saved = files_->resume(options_.resume,
                                    RunFiles::Names(keys.begin(), keys.end()));
  if (found_) check_found(saved.has_value());
  if (!saved) return {};
  load_tensors(engine.module(), wanted, saved->model, adapters_only);
  // A run that died after its last step may not have written them.
  if (adapters_only) save_adapter(engine, options_);
  load_optimizer_state(optimizer, saved->optimizer.value(),
                       engine.module().named_parameters());
  set_generator_states(saved->generators);
  const auto of_scaler = saved->metadata.find(kScaler);
  if (scaler && of_scaler != saved->metadata.end()) {
    const std::vector<double> state = parse_exact(of_scaler->second);
    scaler->set_state({state.at(0), static_cast<int64_t>(state.at(1))});
  }
  Standing standing;
  standing.step = saved->step;
  const auto untested = saved->metadata.find(kUntested);
  if (untested != saved->metadata.end()) {
    standing.untested = values_of(untested->second);
  }
  const auto next = saved->metadata.find(kNext);
  if (next != saved->metadata.end()) {
    const std::vector<double> sums = parse_exact(next->second);
    standing.next.losses = sums.at(0);
    standing.next.steps = static_cast<int64_t>(sums.at(1));
    standing.next.train = {sums.at(2), sums.at(3), sums.at(4)};
  } else if (standing.untested) {  // a file without sums has the last loss
    standing.next.losses = standing.untested->at("loss");
    standing.next.steps = 1;
  }
  standing.next.untimed_steps = standing.next.steps;
  return standing;
}

void SavedRun::check(Engine& engine, const FlagValues& flags) const {
  if (!files_) return;
  internal::together(engine.shard(), [&] {
    internal::lay_out(
        saved_tensors(engine.module(), trains_adapters(options_)));
    internal::Manifest manifest;
    manifest.metadata = flags;
    internal::manifest_text(manifest);
    return "";
  });
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
  if (scaler) {
    const auto [scale, steps_since] = scaler->state();
    flags[kScaler] = exact_text({scale, static_cast<double>(steps_since)});
  }
  if (standing.untested) flags[kUntested] = text_of(*standing.untested);
  const Evaluation& next = standing.next;
  flags[kNext] =
      exact_text({next.losses, static_cast<double>(next.steps),
                  next.train.items, next.train.loss, next.train.value});
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
