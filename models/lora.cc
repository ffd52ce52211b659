#include "models/lora.h"

#include <ATen/ops/empty.h>
#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "gpipe/base/text.h"
#include "models/exported/adapter.h"
#include "models/exported/analysis.h"
#include "models/exported/layer.h"
#include "models/weights/files.h"
#include "models/weights/formats.h"
#include "models/weights/lora_config.h"
#include "models/weights/names.h"
#include "models/weights/safetensors.h"
#include "models/weights/safetensors_file.h"

namespace gpipe {

namespace {

using adapters::Adapter;
using adapters::AdapterSettings;
using exported::LinearNode;
using exported::Model;
using exported::Program;
using exported::ProgramLayer;

// Returns whether `name` is `target` or ends in "." and `target`.
bool fits(const std::string& name, const std::string& target) {
  return name == target || name.ends_with("." + target);
}

void check_options(const LoraOptions& options) {
  TORCH_CHECK_VALUE(options.rank() > 0, "the rank of an adapter is ",
                    options.rank(), ", but must be at least 1");
  TORCH_CHECK_VALUE(std::isfinite(options.alpha()), "alpha is ",
                    options.alpha(), ", but must be a finite number");
  TORCH_CHECK_VALUE(options.dropout() >= 0 && options.dropout() < 1,
                    "the dropout of an adapter is ", options.dropout(),
                    ", but must be from 0 to below 1");
  TORCH_CHECK_VALUE(!options.targets().empty(),
                    "add_lora() needs targets: the last parts of the names of "
                    "linear modules, such as \"q_proj\"");
}

// A linear module that gets an adapter.
struct Place {
  AdapterSettings settings;
  at::Tensor weight;
  // The weight is in a layer of another rank, so that the adapter's values are
  // only drawn. `weight` has its dtype.
  bool is_elsewhere;
  // Gets null if the weight is elsewhere.
  std::function<void(std::shared_ptr<Adapter>)> attach;
};

// Finds the linear modules that the targets name.
class Finder {
 public:
  explicit Finder(const LoraOptions& options)
      : options_(options), matched_(options.targets().size()) {}

  void add(const torch::nn::Sequential& layers) {
    std::map<const Model*, std::vector<ProgramLayer*>> models;
    for (const auto& child : layers->named_children()) {
      if (auto* layer = dynamic_cast<ProgramLayer*>(child.value().get())) {
        models[&layer->model()].push_back(layer);
      }
    }
    std::set<const Model*> done;
    for (const auto& child : layers->named_children()) {
      auto* layer = dynamic_cast<ProgramLayer*>(child.value().get());
      if (!layer) {
        add_modules(child.key(), child.value());
      } else if (done.insert(&layer->model()).second) {
        add_program(layer->model(), models[&layer->model()]);
      }
    }
  }

  // Throws if a target fits no module, or if its weight is that of another
  // Linear: an adapter of a Linear acts by its weight, and so on both.
  std::vector<Place> places() {
    TORCH_CHECK_VALUE(!last_names_.empty(),
                      "the model has no linear module, which could get an "
                      "adapter");
    for (std::size_t k = 0; k < matched_.size(); ++k) {
      TORCH_CHECK_VALUE(
          matched_[k], "no linear module has the name '", options_.targets()[k],
          "' as the last part of its name; linear modules end in:",
          first_lines({last_names_.begin(), last_names_.end()}, 20));
    }
    const std::string& wrapper = options_.wrapper();
    TORCH_CHECK_VALUE(
        wrapper.empty() ||
            std::ranges::any_of(places_,
                                [&](const Place& each) {
                                  return each.settings.name.starts_with(
                                      wrapper + ".");
                                }),
        "LoraOptions::wrapper is '", wrapper,
        "', but no module with an adapter is in it; the first one is '",
        places_.front().settings.name, "'");
    for (const auto& [target, linear] : linears_) {
      if (!adapted_.contains(linear.get())) continue;
      for (const auto& [name, other] : linears_) {
        TORCH_CHECK_VALUE(
            other == linear || !other->weight.is_same(linear->weight),
            "the weight of the module '", target,
            "', which a target names, is also that of '", name,
            "', which would get the adapter, too; leave it out of the targets");
      }
    }
    return std::move(places_);
  }

 private:
  bool wants(const std::string& name) {
    bool found = false;
    for (std::size_t k = 0; k < matched_.size(); ++k) {
      if (!fits(name, options_.targets()[k])) continue;
      matched_[k] = true;
      found = true;
    }
    return found;
  }

  AdapterSettings settings_of(const std::string& name, int64_t inputs,
                              int64_t outputs, bool transposed) const {
    const std::string& wrapper = options_.wrapper();
    const bool is_wrapped = !wrapper.empty() && name.starts_with(wrapper + ".");
    return {name,
            is_wrapped ? name.substr(wrapper.size() + 1) : name,
            inputs,
            outputs,
            options_.rank(),
            adapters::scale_of(options_.rank(), options_.alpha(),
                               options_.rank_stabilized()),
            options_.dropout(),
            transposed};
  }

  void add_modules(const std::string& prefix,
                   const std::shared_ptr<torch::nn::Module>& root) {
    for (const auto& item : root->named_modules(prefix)) {
      const std::string& name = item.key();
      const auto linear =
          std::dynamic_pointer_cast<torch::nn::LinearImpl>(item.value());
      if (linear) {
        last_names_.insert(name.substr(name.rfind('.') + 1));
        linears_.emplace_back(name, linear);
      }
      if (dynamic_cast<Adapter*>(item.value().get())) continue;
      if (!wants(name)) continue;
      TORCH_CHECK_VALUE(linear, "the module '", name,
                        "', which a target names, is no torch::nn::Linear");
      if (!adapted_.insert(linear.get()).second) continue;
      TORCH_CHECK_VALUE(!linear->named_children().contains("lora"),
                        "the module '", name,
                        "' has an adapter already; call merge_lora() first");
      TORCH_CHECK_VALUE(
          adapters::can_attach(*linear), "the module '", name,
          "' cannot have an adapter: its weight belongs to a placed module "
          "(call unparallelize_module() first) or to a backend with data of "
          "its own");
      places_.push_back(
          {settings_of(name, linear->weight.size(1), linear->weight.size(0),
                       /*transposed=*/false),
           linear->weight, /*is_elsewhere=*/false,
           [linear](std::shared_ptr<Adapter> adapter) {
             adapters::attach(*linear, std::move(adapter));
           }});
    }
  }

  void add_program(const Model& model,
                   const std::vector<ProgramLayer*>& layers) {
    const Program& program = model.program;
    std::map<std::string, std::vector<LinearNode>> nodes;
    for (LinearNode& each : exported::find_linears(program)) {
      last_names_.insert(each.module.substr(each.module.rfind('.') + 1));
      nodes[each.module].push_back(std::move(each));
    }
    for (const std::string& name : in_order(program)) {
      if (!wants(name)) continue;
      TORCH_CHECK_VALUE(nodes.count(name), "the module '", name,
                        "', which a target names, does not multiply by its "
                        "weight in a linear node outside of control flow");
      add_module(model, layers, name, nodes[name]);
    }
  }

  // Returns whether a branch or a loop uses the weight.
  static bool is_used_in_body(const Program& program, int weight) {
    return std::ranges::any_of(program.nodes, [&](const exported::Node& node) {
      return node.control != exported::Control::kNone &&
             std::ranges::any_of(node.reads, [&](exported::ValueId value) {
               return program.values[value].weight == weight;
             });
    });
  }

  // Returns the names of modules in the order of their weights in Python.
  static std::vector<std::string> in_order(const Program& program) {
    std::set<std::string> names = exported::module_names(program);
    std::vector<std::string> ordered;
    for (const int number : program.weight_order) {
      const std::string& weight = program.weights[number].name;
      const auto found = names.find(weight.substr(0, weight.rfind('.')));
      if (found == names.end()) continue;
      ordered.push_back(*found);
      names.erase(found);
    }
    ordered.insert(ordered.end(), names.begin(), names.end());
    return ordered;
  }

  void add_module(const Model& model, const std::vector<ProgramLayer*>& layers,
                  const std::string& name,
                  const std::vector<LinearNode>& nodes) {
    const int number = nodes[0].weight;
    const bool transposed = nodes[0].transposed;
    TORCH_CHECK_VALUE(std::ranges::all_of(nodes,
                                          [&](const LinearNode& each) {
                                            return each.weight == number &&
                                                   each.transposed ==
                                                       transposed;
                                          }),
                      "the module '", name,
                      "', which a target names, multiplies by several "
                      "weights; leave it out of the targets");
    TORCH_CHECK_VALUE(!is_used_in_body(model.program, number),
                      "the weight of the module '", name,
                      "', which a target names, is also used in a branch or a "
                      "loop of the program, where an adapter does not act; "
                      "leave it out of the targets");
    const exported::Weight& weight = model.program.weights[number];
    const exported::AdapterRoute route = exported::adapter_route(
        model,
        settings_of(name, weight.sizes[transposed ? 0 : 1],
                    weight.sizes[transposed ? 1 : 0], transposed),
        nodes);
    Place place{route.settings, at::Tensor(), false, nullptr};
    for (const ProgramLayer* layer : layers) {
      if (layer->place() != route.layers[0]) continue;
      TORCH_CHECK_VALUE(!has_adapter(*layer, name), "the module '", name,
                        "' has an adapter already; call merge_lora() first");
      for (const auto& [own, tensor] : layer->weights()) {
        if (own == number) place.weight = tensor;
      }
    }
    if (!place.weight.defined()) {
      place.is_elsewhere = true;
      place.weight = at::empty({0}, weight.dtype);
    }
    place.attach = [layers, route](const std::shared_ptr<Adapter>& adapter) {
      for (ProgramLayer* layer : layers) {
        const bool owns = layer->place() == route.layers[0];
        layer->add_adapter(route, owns ? adapter : nullptr);
      }
    };
    places_.push_back(std::move(place));
  }

  static bool has_adapter(const ProgramLayer& layer, const std::string& name) {
    for (const auto& each : layer.modules()) {
      const auto* adapter = dynamic_cast<const Adapter*>(each.get());
      if (adapter && adapter->settings().name == name) return true;
    }
    return false;
  }

  const LoraOptions& options_;
  std::vector<char> matched_;  // by target
  std::set<std::string> last_names_;
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::LinearImpl>>>
      linears_;
  std::set<const torch::nn::LinearImpl*> adapted_;  // the targets
  std::vector<Place> places_;
};

// Calls `use` once with each adapter and a function that removes it, also if
// several layers have its module.
template <typename Use>
void for_each_adapter(torch::nn::Module& module, const Use& use) {
  std::set<const Adapter*> used;
  for (const auto& each : module.modules()) {
    if (auto* layer = dynamic_cast<ProgramLayer*>(each.get())) {
      for (const auto& inner : layer->modules()) {
        const auto adapter = std::dynamic_pointer_cast<Adapter>(inner);
        if (!adapter || !used.insert(adapter.get()).second) continue;
        use(*adapter, [layer, adapter] { layer->remove_adapter(*adapter); });
      }
    }
    if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(each.get())) {
      for (const auto& inner : linear->children()) {
        const auto adapter = std::dynamic_pointer_cast<Adapter>(inner);
        if (!adapter || !used.insert(adapter.get()).second) continue;
        // `adapter` must not be destroyed before the caller is done with it.
        use(*adapter, [linear, adapter] { adapters::detach(*linear); });
      }
    }
  }
}

}  // namespace

torch::nn::Sequential add_lora(torch::nn::Sequential layers,
                               const LoraOptions& options) {
  check_options(options);
  Finder finder(options);
  finder.add(layers);
  std::vector<std::pair<Place, std::shared_ptr<Adapter>>> made;
  for (Place& place : finder.places()) {
    auto adapter = std::make_shared<Adapter>(place.settings, place.weight);
    if (place.is_elsewhere) adapter = nullptr;
    made.emplace_back(std::move(place), std::move(adapter));
  }
  for (at::Tensor& each : layers->parameters()) each.set_requires_grad(false);
  for (auto& [place, adapter] : made) {
    if (adapter) adapter->train(layers->is_training());
    place.attach(std::move(adapter));
  }
  return layers;
}

ExportedModel add_lora(ExportedModel model, const LoraOptions& options) {
  add_lora(model.layers, options);
  return model;
}

void merge_lora(torch::nn::Module& module) {
  for_each_adapter(module, [](Adapter& adapter, const auto& remove) {
    adapter.merge();
    remove();
  });
}

// ---- Adapters in files of PEFT

namespace {

using adapters::Adapter;
using internal::in_quotes;

constexpr char kConfig[] = "adapter_config.json";
constexpr char kTensors[] = "adapter_model.safetensors";

// PEFT's names of the matrices of a module's adapter begin and end with these.
constexpr char kBase[] = "base_model.model.";
constexpr char kA[] = ".lora_A.weight", kB[] = ".lora_B.weight";

// The last names of input embeddings in transformers.
constexpr std::array<const char*, 7> kEmbeddings = {
    "embed_tokens",   "wte",   "embed_in", "word_embeddings", "word_embedding",
    "tok_embeddings", "shared"};

std::string path_in(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

// Returns `name` as a part of the names of flatten() and stack(), which write
// "_" for ".".
std::string flat(const std::string& name) {
  return absl::StrReplaceAll(name, {{".", "_"}});
}

// Returns the name in files of the adapter of a Linear that is at `place`. A
// pipeline and stack() name layers anew; a part or an owner of the module of
// add_lora(), and flatten(), do not.
std::string file_name_at(const std::string& place,
                         const AdapterSettings& settings) {
  const std::string& name = settings.name;
  if (place.empty() || fits(name, place) || fits(place, name) ||
      flat(name) == flat(place)) {
    return settings.file_name;
  }
  const std::string wrapper =
      name.substr(0, name.size() - settings.file_name.size());
  return place.starts_with(wrapper) ? place.substr(wrapper.size()) : place;
}

struct NamedAdapter {
  std::string file_name;
  std::shared_ptr<const Adapter> adapter;
  const Adapter* operator->() const { return adapter.get(); }
};

// Returns each adapter once.
std::vector<NamedAdapter> adapters_in(const torch::nn::Module& module) {
  std::vector<NamedAdapter> found;
  std::set<const Adapter*> seen;
  for (const auto& item : module.named_modules()) {
    const bool is_linear =
        dynamic_cast<const torch::nn::LinearImpl*>(item.value().get());
    for (const auto& child : item.value()->children()) {
      auto adapter = std::dynamic_pointer_cast<const Adapter>(child);
      if (!adapter || !seen.insert(adapter.get()).second) continue;
      const AdapterSettings& settings = adapter->settings();
      found.push_back(
          {is_linear ? file_name_at(item.key(), settings) : settings.file_name,
           std::move(adapter)});
    }
  }
  return found;
}

// Throws c10::ValueError if rank or scale of an adapter are not those of the
// options. `source`: the options, for the error.
void check_same(const std::vector<NamedAdapter>& adapters,
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

// Throws c10::ValueError unless the tensor is that of an adapter of this rank,
// of a module that a target fits.
void check_saved(const std::string& name, const at::Tensor& tensor,
                 int64_t rank, const std::vector<std::string>& targets) {
  const bool is_a = name.ends_with(kA), is_b = name.ends_with(kB);
  TORCH_CHECK_VALUE(
      (is_a || is_b) && tensor.dim() == 2 && tensor.size(is_a ? 0 : 1) == rank,
      "'", name, "' is ", tensor.sizes(),
      ", but LoraOptions has adapters of rank ", rank);
  const std::string module =
      name.substr(0, name.size() - std::string_view(kA).size());
  TORCH_CHECK_VALUE(
      std::ranges::any_of(targets,
                          [&](const auto& each) {
                            return fits(module, each) ||
                                   flat(module).ends_with("_" + flat(each));
                          }),
      "'", name, "' is of a module that no target of LoraOptions fits (",
      absl::StrJoin(targets, ", "), ")");
}

// Returns the adapters in a folder of PEFT, without the copies of base weights
// and biases that PEFT writes for adapters of lm_head.
StateDict read_adapters(const std::string& path) {
  const auto is_adapter = [](const std::string& name) {
    return name.find(".base_layer.") == std::string::npos ||
           name.find(".lora_") != std::string::npos;
  };
  StateDict adapters;
  for (const auto& each : read_safetensors(path, is_adapter).tensors) {
    if (is_adapter(each.key())) adapters.insert(each.key(), each.value());
  }
  return adapters;
}

// Returns the text of a file; nullopt if it cannot be read.
std::optional<std::string> text_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

internal::LoraConfig read_config(const std::string& folder) {
  const std::string path = path_in(folder, kConfig);
  const auto text = text_in(path);
  TORCH_CHECK_VALUE(text, "'", path, "'",
                    " cannot be read; a folder of PEFT has this file and ",
                    kTensors);
  return internal::with_prefix(
      "'" + path + "' ", [&] { return internal::parse_lora_config(*text); });
}

}  // namespace

StateDict lora_state_dict(const torch::nn::Module& module) {
  StateDict dict;
  for (const auto& each : adapters_in(module)) {
    const std::string name = kBase + each.file_name;
    TORCH_CHECK_VALUE(!dict.contains(name + kA), "two adapters have the name '",
                      each.file_name,
                      "' in files; call add_lora() once, on the whole model, "
                      "or give layers names of their own");
    dict.insert(name + kA, each->a().detach());
    dict.insert(name + kB, each->b().detach());
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
  check_options(options);
  // PEFT's names begin after the wrapper, and so do the targets.
  const std::string wrapper = options.wrapper() + ".";
  std::vector<std::string> targets = options.targets();
  for (std::string& each : targets) {
    if (each.starts_with(wrapper)) each.erase(0, wrapper.size());
  }
  for (const auto& each : adapters) {
    check_saved(each.key(), each.value(), options.rank(), targets);
  }
  const std::string text = internal::lora_config_text(
      {LoraOptions(options).targets(targets), fan_in_fan_out});
  const auto layout = internal::lay_out(adapters, {{"format", "pt"}});
  internal::make_folders(folder);
  const std::string path = path_in(folder, kConfig);
  internal::AtomicFile tensors(path_in(folder, kTensors)), config(path);
  internal::write_laid_out(tensors, adapters, layout);
  config.write(text.data(), text.size());
  tensors.finish();
  config.finish();
  // If the process dies between both files, there is no scale for the matrices,
  // rather than that of an earlier save.
  if (text_in(path) != text) {
    internal::remove_file(path);
    internal::sync_folder(internal::folder_of(path));
  }
  tensors.commit();
  config.commit();
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
  const StateDict given = read_adapters(path);
  const StateDict own = lora_state_dict(module);
  if (own.is_empty()) return;
  StateDict wanted;
  for (const auto& each : given) {
    if (strict || own.contains(each.key())) {
      wanted.insert(each.key(), each.value());
    }
  }
  internal::with_prefix("'" + path + "' ", [&] {
    // A module without values compares names and shapes.
    return own[0].value().is_meta() ? check_state_dict(own, wanted)
                                    : load_state_dict(own, wanted);
  });
}

namespace {

// Returns an input embedding of these sizes in `weights`; null if there is
// none.
const at::Tensor* find_embedding(const StateDict& weights,
                                 at::IntArrayRef sizes) {
  for (const auto& item : weights) {
    if (item.value().sizes() != sizes) continue;
    for (const char* name : kEmbeddings) {
      if (fits(item.key(), std::string(name) + ".weight")) return &item.value();
    }
  }
  return nullptr;
}

// Returns the names in `weights` of the weight of `module`. Tied weights share
// memory, are stored once, or are stored twice with equal values. Stored once,
// an output layer that has no weight of its own has that of the input
// embedding, of `sizes`.
std::vector<std::string> weight_names(const StateDict& weights,
                                      const std::string& module,
                                      at::IntArrayRef sizes) {
  const at::Tensor* own = weights.find(module + ".weight");
  const bool is_numbered = std::ranges::any_of(module, absl::ascii_isdigit);
  const at::Tensor* const embedding =
      is_numbered ? nullptr
                  : find_embedding(weights, own ? own->sizes() : sizes);
  if (!own) own = embedding;
  const bool is_tied = embedding &&
                       own->scalar_type() == embedding->scalar_type() &&
                       own->equal(*embedding);
  const auto is_one = [](const at::Tensor& each, const at::Tensor& of) {
    return each.is_alias_of(of) && each.sizes() == of.sizes() &&
           each.strides() == of.strides() && each.data_ptr() == of.data_ptr();
  };
  std::vector<std::string> names;
  for (const auto& item : weights) {
    const at::Tensor& each = item.value();
    if (own && (is_one(each, *own) || (is_tied && is_one(each, *embedding)))) {
      names.push_back(item.key());
    }
  }
  return names;
}

// Returns whether the square weight of `module` has the size [inputs, outputs],
// as in GPT-2's Conv1D: by the biases of other modules with its last name.
// Returns nullopt if there are none. (PEFT writes fan_in_fan_out once for all
// modules, and for the last one.)
std::optional<bool> is_transposed(const StateDict& weights,
                                  const std::string& module) {
  const std::string last =
      module.substr(module.rfind('.') + 1);  // npos + 1 is 0
  for (const auto& item : weights) {
    const at::Tensor& weight = item.value();
    if (!fits(item.key(), last + ".weight") || weight.dim() != 2) continue;
    const std::string other = item.key().substr(0, item.key().rfind('.'));
    const at::Tensor* const bias = weights.find(other + ".bias");
    if (!bias || weight.size(0) == weight.size(1)) continue;
    return bias->numel() == weight.size(1);
  }
  return std::nullopt;
}

// The two matrices of an adapter in a file of PEFT.
struct Matrices {
  std::string module;
  const at::Tensor* a;
  const at::Tensor* b;
};

// Returns the adapters in `given`, the tensors of the file `path`.
std::vector<Matrices> matrices_of(const StateDict& given,
                                  const std::string& path) {
  constexpr std::size_t first = std::string_view(kBase).size();
  constexpr std::size_t last = std::string_view(kA).size();
  std::vector<Matrices> found;
  for (const std::string& name : given.keys()) {
    TORCH_CHECK_VALUE(
        name.starts_with(kBase) && (name.ends_with(kA) || name.ends_with(kB)),
        "'", path, "' has the tensor ", in_quotes(name),
        ", which is none of an adapter of linear modules");
    const std::string module = name.substr(first, name.size() - first - last);
    const at::Tensor* const a = given.find(kBase + module + kA);
    const at::Tensor* const b = given.find(kBase + module + kB);
    TORCH_CHECK_VALUE(a && b, "'", path, "' has ", in_quotes(name),
                      " without the other matrix of its adapter");
    if (name.ends_with(kA)) found.push_back({module, a, b});
  }
  return found;
}

}  // namespace

void merge_lora(const std::string& folder, StateDict& weights) {
  const internal::LoraConfig config = read_config(folder);
  const LoraOptions& options = config.options;
  const double scale = adapters::scale_of(options.rank(), options.alpha(),
                                          options.rank_stabilized());
  const std::string path = path_in(folder, kTensors);
  const StateDict given = read_adapters(path);
  const std::vector<Matrices> adapters = matrices_of(given, path);
  internal::NameSet adapted, stored;
  for (const Matrices& each : adapters) adapted.insert(each.module + ".weight");
  for (const std::string& name : weights.keys()) stored.insert(name);
  const internal::NamePrefix prefix(adapted, stored);
  std::map<std::string, at::Tensor> merged;  // by name
  for (const auto& [module, a, b] : adapters) {
    const std::string stored_as =
        stored.count(module + ".weight") > 0 ? module : prefix.in_file(module);
    const std::vector<std::string> names = weight_names(
        weights, stored_as,
        {b->dim() == 2 ? b->size(0) : 0, a->dim() == 2 ? a->size(1) : 0});
    TORCH_CHECK_VALUE(!names.empty(), "'", path,
                      "' has an adapter of the module ", in_quotes(module),
                      ", but there is no weight ",
                      in_quotes(module + ".weight"));
    const at::Tensor* const base = weights.find(names[0]);
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
    const bool turned =
        plain && transposed
            ? is_transposed(weights, stored_as).value_or(config.fan_in_fan_out)
            : transposed;
    // Two adapters may belong to one tied weight.
    at::Tensor& sum = merged[names[0]];
    if (!sum.defined()) sum = base->clone();
    // PEFT loads adapters of 16 bits as float32.
    const auto wide = [](const at::Tensor& tensor) {
      return tensor.to(c10::promoteTypes(tensor.scalar_type(), at::kFloat));
    };
    sum.add_(adapters::delta_of(wide(*a), wide(*b), scale, turned));
    for (const std::string& each : names) merged[each] = sum;
  }
  TORCH_CHECK_VALUE(!merged.empty(), "'", path, "' has no adapters");
  for (auto& [name, sum] : merged) weights[name] = std::move(sum);
}

}  // namespace gpipe
