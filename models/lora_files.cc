// Adapters in files of PEFT.
#include <c10/util/Exception.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "models/adapters/adapter.h"
#include "models/exported/module_tree.h"
#include "models/lora.h"
#include "models/lora_config.h"
#include "models/weights/atomic_file.h"
#include "models/weights/in_quotes.h"
#include "models/weights/safetensors.h"

namespace gpipe {
namespace {

using adapters::Adapter;
using internal::in_quotes;

constexpr char kConfig[] = "adapter_config.json";
constexpr char kTensors[] = "adapter_model.safetensors";

std::string path_in(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

std::vector<std::shared_ptr<const Adapter>> adapters_in(
    const torch::nn::Module& module) {
  std::vector<std::shared_ptr<const Adapter>> found;
  for (const auto& each : module.modules()) {
    if (auto adapter = std::dynamic_pointer_cast<const Adapter>(each)) {
      found.push_back(std::move(adapter));
    }
  }
  return found;
}

// Throws c10::ValueError if rank or scale of an adapter are not those of the
// options. `source`: the options, for the error.
void check_same(const std::vector<std::shared_ptr<const Adapter>>& adapters,
                const LoraOptions& options, const std::string& source) {
  const double scale = adapters::scale_of(options.rank(), options.alpha(),
                                          options.rank_stabilized());
  for (const auto& each : adapters) {
    const auto& own = each->settings();
    TORCH_CHECK_VALUE(own.rank == options.rank() && own.scale == scale, source,
                      " has adapters of rank ", options.rank(), " and scale ",
                      scale, ", but that of the module '", own.name,
                      "' has rank ", own.rank, " and scale ", own.scale);
  }
}

// Calls `read` and adds the path to errors in the file.
template <typename Read>
auto with_path(const std::string& path, const Read& read) {
  try {
    return read();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "'", path, "'", " ",
                      error.what_without_backtrace());
  }
}

internal::LoraConfig read_config(const std::string& folder) {
  const std::string path = path_in(folder, kConfig);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file, "'", path, "'",
                    " cannot be read; a folder of PEFT has this file and ",
                    kTensors);
  std::ostringstream text;
  text << file.rdbuf();
  return with_path(path,
                   [&] { return internal::parse_lora_config(text.str()); });
}

}  // namespace

StateDict lora_state_dict(const torch::nn::Module& module) {
  StateDict dict;
  for (const auto& each : adapters_in(module)) {
    const std::string name = "base_model.model." + each->settings().file_name;
    if (dict.contains(name + ".lora_A.weight")) continue;
    dict.insert(name + ".lora_A.weight", each->a().detach());
    dict.insert(name + ".lora_B.weight", each->b().detach());
  }
  return dict;
}

bool lora_fan_in_fan_out(const torch::nn::Module& module) {
  for (const auto& each : adapters_in(module)) {
    if (each->settings().transposed) return true;
  }
  return false;
}

void save_lora(const std::string& folder, const torch::nn::Module& module,
               const LoraOptions& options) {
  const auto adapters = adapters_in(module);
  check_same(adapters, options, "LoraOptions");
  const bool transposed =
      !adapters.empty() && adapters[0]->settings().transposed;
  save_lora(folder, lora_state_dict(module), options, transposed);
}

void save_lora(const std::string& folder, const StateDict& adapters,
               const LoraOptions& options, bool fan_in_fan_out) {
  TORCH_CHECK_VALUE(!adapters.is_empty(),
                    "there are no adapters to save; call add_lora() first");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK(!error, "cannot make the folder ", "'", folder, "'", ": ",
              error.message());
  write_safetensors(path_in(folder, kTensors), adapters, {{"format", "pt"}});
  const std::string text =
      internal::lora_config_text({options, fan_in_fan_out});
  internal::AtomicFile file(path_in(folder, kConfig));
  file.write(text.data(), text.size());
  file.commit();
}

LoraOptions read_lora_options(const std::string& folder) {
  return read_config(folder).options;
}

void load_lora(const std::string& folder, torch::nn::Module& module,
               bool strict) {
  const LoraOptions options = read_lora_options(folder);
  const auto adapters = adapters_in(module);
  TORCH_CHECK_VALUE(!adapters.empty() || !strict,
                    "the module has no adapters; call add_lora() with "
                    "read_lora_options(",
                    "'", folder, "'", ") first");
  check_same(adapters, options, "'" + path_in(folder, kConfig) + "'");
  const std::string path = path_in(folder, kTensors);
  StateDict given = read_safetensors(path).tensors;
  const StateDict own = lora_state_dict(module);
  if (own.is_empty()) return;
  // The checks and their texts are those of a module with these tensors.
  torch::nn::Module named;
  StateDict wanted;
  for (const auto& each : own) {
    exported::register_weight(named, each.key(), each.value(),
                              /*is_parameter=*/false, /*requires_grad=*/false);
  }
  for (const auto& each : given) {
    if (strict || own.contains(each.key())) {
      wanted.insert(each.key(), each.value());
    }
  }
  with_path(path, [&] { return load_state_dict(named, wanted); });
}

void merge_lora(const std::string& folder, StateDict& weights) {
  const internal::LoraConfig config = read_config(folder);
  const LoraOptions& options = config.options;
  const double scale = adapters::scale_of(options.rank(), options.alpha(),
                                          options.rank_stabilized());
  const std::string path = path_in(folder, kTensors);
  const StateDict given = read_safetensors(path).tensors;
  const std::string first = "base_model.model.", last_a = ".lora_A.weight",
                    last_b = ".lora_B.weight";
  std::vector<std::pair<std::string, at::Tensor>> merged;
  for (const auto& item : given) {
    const std::string& name = item.key();
    TORCH_CHECK_VALUE(name.starts_with(first) &&
                          (name.ends_with(last_a) || name.ends_with(last_b)),
                      "'", path, "' has the tensor ", in_quotes(name),
                      ", which is none of an adapter of linear modules");
    const std::string module =
        name.substr(first.size(), name.size() - first.size() - last_a.size());
    const at::Tensor* const a = given.find(first + module + last_a);
    const at::Tensor* const b = given.find(first + module + last_b);
    const at::Tensor* const base = weights.find(module + ".weight");
    TORCH_CHECK_VALUE(a && b, "'", path, "' has ", in_quotes(name),
                      " without the other matrix of its adapter");
    TORCH_CHECK_VALUE(base, "'", path, "' has an adapter of the module ",
                      in_quotes(module), ", but there is no weight ",
                      in_quotes(module + ".weight"));
    if (name.ends_with(last_b)) continue;
    const bool fits = a->dim() == 2 && b->dim() == 2 && base->dim() == 2 &&
                      a->size(0) == options.rank() && b->size(1) == a->size(0);
    const auto has_sizes = [&](int64_t rows, int64_t columns) {
      return fits && base->size(0) == rows && base->size(1) == columns;
    };
    const bool plain = has_sizes(fits ? b->size(0) : 0, fits ? a->size(1) : 0);
    const bool transposed =
        has_sizes(fits ? a->size(1) : 0, fits ? b->size(0) : 0);
    TORCH_CHECK_VALUE(plain || transposed, "'", path,
                      "' has an adapter of rank ", options.rank(), " for ",
                      in_quotes(module), " with the sizes ", a->sizes(),
                      " and ", b->sizes(), ", but the weight has ",
                      base->sizes());
    at::Tensor sum = base->clone();
    sum.add_(adapters::delta_of(
        *a, *b, scale, !plain || (transposed && config.fan_in_fan_out)));
    merged.emplace_back(module + ".weight", std::move(sum));
  }
  TORCH_CHECK_VALUE(!merged.empty(), "'", path, "' has no adapters");
  for (auto& [name, sum] : merged) weights[name] = std::move(sum);
}

}  // namespace gpipe
