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
#include "models/weights/safetensors.h"

namespace gpipe {
namespace {

using adapters::Adapter;

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
  const std::string text = internal::lora_config(options, fan_in_fan_out);
  internal::AtomicFile file(path_in(folder, kConfig));
  file.write(text.data(), text.size());
  file.commit();
}

LoraOptions read_lora_options(const std::string& folder) {
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

}  // namespace gpipe
