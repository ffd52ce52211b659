#include "training/checkpoint/step_folder.h"

#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <utility>

#include "training/base/file_operations.h"
#include "training/base/parameter_rows.h"
#include "training/checkpoint/damage.h"
#include "training/checkpoint/join_shards.h"
#include "training/checkpoint/tensor_file.h"

namespace gpipe::internal {
namespace {

std::string file_name(const char* kind, const RunShard& shard) {
  if (shard.count == 1) return std::string(kind) + ".safetensors";
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", kind, shard.index,
                         shard.count);
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

void write_manifest(const std::string& folder, const Manifest& manifest) {
  write_text(folder + "/" + kManifestName, manifest_text(manifest));
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
