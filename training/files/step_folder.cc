#include "training/files/step_folder.h"

#include <ATen/ops/cat.h>
#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "training/files/file_operations.h"
#include "training/files/parameter_rows.h"
#include "training/files/tensor_file.h"

namespace gpipe::internal {

// ---- Names

namespace {

constexpr char kStep[] = "step-";
constexpr char kTemporary[] = ".tmp-";
constexpr char kAside[] = ".old";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const auto step = number_of(name.substr(sizeof kStep - 1));
  // Rejects "step-7", so that each step has only one name.
  if (!step || step_name(*step) != name) return std::nullopt;
  return step;
}

}  // namespace

std::optional<int64_t> number_of(std::string_view text) {
  const auto number = read_number<int64_t>(text);
  return number >= 0 ? number : std::nullopt;
}

std::string step_name(int64_t step) {
  return kStep + absl::StrFormat("%012ld", step);
}

std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in_folder(folder)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string later_step(const std::string& folder,
                       const std::vector<int64_t>& steps, int64_t step) {
  if (steps.empty() || steps.back() <= step) return "";
  return folder + "/" + step_name(steps.back()) +
         " is of an earlier run, or a later step of this one; a resume with "
         "auto tries it first. Move it away, or use another folder";
}

std::string temporary_name(int64_t step) {
  return "." + step_name(step) + kTemporary + host_name() + "-" +
         std::to_string(getpid());
}

std::string aside_name(const std::string& temporary) {
  return temporary + kAside;
}

bool is_leftover(const std::string& name, int64_t step) {
  const std::size_t at = name.find(kTemporary);
  if (!name.starts_with(std::string(".") + kStep) || at == std::string::npos) {
    return false;
  }
  const auto its_step = step_of(name.substr(1, at - 1));
  std::string_view owner = std::string_view(name).substr(at);
  owner.remove_prefix(sizeof kTemporary - 1);
  if (owner.ends_with(kAside)) owner.remove_suffix(sizeof kAside - 1);
  const std::size_t dash = owner.rfind('-');
  if (!its_step || dash == std::string::npos) return false;
  const auto process = number_of(owner.substr(dash + 1));
  if (!process) return false;
  if (owner.substr(0, dash) != host_name()) return *its_step <= step;
  if (*process == getpid()) return true;
  return kill(static_cast<pid_t>(*process), 0) != 0 && errno == ESRCH;
}

// ---- The state of an optimizer that is spread over replicas

void join_shards(OptimizerState& state) {
  using Parameter = OptimizerState::Parameter;
  std::map<std::string, std::map<int64_t, std::pair<int64_t, Parameter>>> all;
  std::map<std::string, Parameter> whole;
  for (auto& [name, parameter] : state.parameters) {
    if (auto shard = parse_shard_name(name)) {
      all[shard->parameter][shard->first] = {shard->end, std::move(parameter)};
    } else {
      whole.emplace(name, std::move(parameter));
    }
  }
  for (auto& [name, shards] : all) {
    Parameter joined = shards.begin()->second.second;
    std::map<std::string, std::vector<at::Tensor>> parts;
    int64_t row = 0;
    for (const auto& [first, rest] : shards) {
      const auto& [end, parameter] = rest;
      if (first != row || parameter.counts != joined.counts ||
          parameter.tensors.size() != joined.tensors.size()) {
        throw Damage("the rows of the optimizer's state of '" + name +
                     "' do not fit together at row " + std::to_string(row));
      }
      for (const auto& [what, tensor] : parameter.tensors) {
        parts[what].push_back(tensor);
      }
      row = end;
    }
    for (auto& [what, tensor] : joined.tensors) tensor = at::cat(parts[what]);
    if (!whole.emplace(name, std::move(joined)).second) {
      throw Damage("the optimizer's state of '" + name +
                   "' is there as a whole and in rows");
    }
  }
  state.parameters = std::move(whole);
}

// ---- Files

namespace {

std::string file_name(const char* kind, const RunShard& shard) {
  if (shard.count == 1) return std::string(kind) + ".safetensors";
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", kind, shard.index,
                         shard.count);
}

// Returns the names of the model's tensors.
std::set<std::string> model_names(const Manifest& manifest) {
  std::set<std::string> names;
  for (const Manifest::Part& part : manifest.parts) {
    if (!part.model) continue;
    for (const TensorRecord& each : part.model->tensors) {
      names.insert(each.name);
    }
  }
  return names;
}

// Throws Damage if the manifest is missing, damaged or of another step.
Manifest read_manifest(const std::string& folder, int64_t step) {
  std::string text;
  try {
    text = read_text(folder + "/" + kManifestName);
  } catch (const c10::Error& error) {
    throw Damage(error.what_without_backtrace());
  }
  Manifest manifest;
  try {
    manifest = parse_manifest(text);
  } catch (const Damage& damage) {
    throw Damage(std::string(kManifestName) + " " + damage.what());
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, folder, "/", kManifestName, " ",
                      error.what_without_backtrace());
  }
  if (manifest.step != step) {
    throw Damage(std::string(kManifestName) + " is that of step " +
                 std::to_string(manifest.step));
  }
  return manifest;
}

}  // namespace

Manifest write_part(const std::string& folder, const RunState& state,
                    const RunShard& shard) {
  Manifest manifest;
  manifest.step = state.step;
  manifest.metadata = state.metadata;
  Manifest::Part& part = manifest.parts.emplace_back();
  // Writes no file if there is no tensor.
  const auto write = [&](const char* kind, const StateDict& tensors,
                         std::optional<TensorFileRecord>& record) {
    if (tensors.is_empty()) return;
    record = write_tensor_file(folder, file_name(kind, shard), tensors);
  };
  write("model", state.model, part.model);

  if (state.optimizer) {
    StateDict tensors;
    manifest.optimizer = *state.optimizer;
    for (auto& [name, parameter] : manifest.optimizer->parameters) {
      for (auto& [what, tensor] : parameter.tensors) {
        tensors.insert(tensor_key(what, name), std::exchange(tensor, {}));
      }
    }
    write("optimizer", tensors, part.optimizer);
  }

  StateDict generators;
  for (const auto& [device, bytes] : state.generators) {
    generators.insert(device, bytes);
  }
  write("generators", generators, part.generators);
  return manifest;
}

bool has_all_files(const std::string& folder, int64_t step) {
  try {
    const Manifest manifest = read_manifest(folder, step);
    const auto none = [](const std::string&) { return false; };
    for (const Manifest::Part& part : manifest.parts) {
      for (const auto* file :
           {&part.model, &part.optimizer, &part.generators}) {
        if (*file) read_tensor_file(folder, **file, none);
      }
    }
    return true;
  } catch (const Damage&) {
    return false;
  } catch (const c10::ValueError&) {
    return true;  // a later version, which this code cannot check
  }
}

void check_replaceable(const std::string& folder, const Manifest& manifest) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return;
  std::set<std::string> saved;
  try {
    saved = model_names(read_manifest(folder, manifest.step));
  } catch (const Damage&) {
    return;
  } catch (const c10::ValueError&) {
    return;  // a later version, which this code cannot compare
  }
  const std::set<std::string> now = model_names(manifest);
  const bool common = std::any_of(
      now.begin(), now.end(),
      [&](const std::string& name) { return saved.contains(name); });
  TORCH_CHECK_VALUE(
      common || saved.empty() || now.empty(), folder,
      " has other layers: it contains '", *saved.begin(),
      "' and no tensor of the model to save, such as '", *now.begin(),
      "'. If several processes save one model, give each its place by "
      "RunFilesOptions::shard; else use another folder for this model");
}

RunState read_state(const std::string& folder, int64_t step,
                    const std::optional<std::set<std::string>>& names,
                    const RunShard& shard) {
  Manifest manifest = read_manifest(folder, step);
  const auto wanted = [&](const std::string& name) {
    return !names || names->count(name) > 0;
  };
  RunState state;
  state.step = manifest.step;
  state.metadata = std::move(manifest.metadata);

  // Opens every file, at least to check its size and header, even if `names`
  // needs none of its tensors.
  StateDict of_optimizer;
  for (const Manifest::Part& part : manifest.parts) {
    if (part.model) {
      state.model.update(read_tensor_file(folder, *part.model, wanted));
    }
    if (part.optimizer) {
      of_optimizer.update(read_tensor_file(
          folder, *part.optimizer, [&](const std::string& key) {
            return wanted(parameter_of(key.substr(key.find(':') + 1)));
          }));
    }
  }

  if (manifest.optimizer) {
    OptimizerState& optimizer = state.optimizer.emplace();
    optimizer.type = manifest.optimizer->type;
    optimizer.groups = manifest.optimizer->groups;
    for (auto& [name, parameter] : manifest.optimizer->parameters) {
      if (!wanted(parameter_of(name))) continue;
      for (auto& [what, tensor] : parameter.tensors) {
        const at::Tensor* const found =
            of_optimizer.find(tensor_key(what, name));
        if (!found) throw Damage(tensor_key(what, name) + " is in no file");
        tensor = *found;
      }
      optimizer.parameters.emplace(name, std::move(parameter));
    }
    join_shards(optimizer);
  }

  const std::size_t own =
      manifest.parts.size() == static_cast<std::size_t>(shard.count)
          ? static_cast<std::size_t>(shard.index)
          : 0;
  for (std::size_t k = 0; k < manifest.parts.size(); ++k) {
    const auto& file = manifest.parts[k].generators;
    if (!file) continue;
    const StateDict generators = read_tensor_file(
        folder, *file, [&](const std::string&) { return k == own; });
    for (const auto& item : generators) {
      state.generators[item.key()] = item.value();
    }
  }
  return state;
}

}  // namespace gpipe::internal
