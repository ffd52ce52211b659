#include "training/program/weights.h"

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/meta.h"
#include "models/lora.h"
#include "models/weights/formats.h"
#include "models/weights/hugging_face.h"
#include "models/weights/names.h"
#include "models/weights/run_shard.h"
#include "models/weights/safetensors.h"
#include "models/weights/safetensors_file.h"
#include "models/weights/state_dict.h"
#include "models/weights/torch_file.h"
#include "training/data/random.h"

namespace gpipe::train_program {

// ---- Initial weights

namespace {

// The tensors of a model by name, and the function that sets them.
struct NamedTensors {
  StateDict dict;
  std::function<void(const StateDict&)> load;
};

// Returns the model's tensors under the names that `given` uses.
NamedTensors named_tensors(torch::nn::Sequential& model,
                           ExportedModel* exported, const StateDict& given) {
  NamedTensors own{state_dict(*model), [&model](const StateDict& dict) {
                     load_state_dict(*model, dict);
                   }};
  if (!exported) return own;
  NamedTensors python{
      exported->state_dict(),
      [exported](const StateDict& dict) { exported->load_state_dict(dict); }};
  const bool is_own =
      std::any_of(given.begin(), given.end(), [&](const auto& item) {
        return own.dict.contains(item.key()) &&
               !python.dict.contains(item.key());
      });
  return is_own ? own : python;
}

// Returns the tensors of `dict` that the model has, in the model's order.
StateDict in_order_of(const StateDict& of_model, const StateDict& dict) {
  StateDict found;
  for (const std::string& name : of_model.keys()) {
    if (const at::Tensor* each = dict.find(name)) found.insert(name, *each);
  }
  return found;
}

// Copies those of `tensors`, which are of the whole model, that `part` has into
// it.
void load_part(ExportedModel& part, const StateDict& tensors) {
  const NamedTensors own = named_tensors(part.layers, &part, tensors);
  StateDict wanted;
  for (const auto& item : own.dict) {
    const at::Tensor* found = tensors.find(item.key());
    wanted.insert(item.key(), found ? *found : item.value().clone());
  }
  own.load(wanted);
}

// Returns those tensors of a safetensors file that `all` names, with values if
// `part` has them.
StateDict read_for(const ExportedModel& part, const StateDict& all,
                   const std::string& path) {
  const StateDict own = state_dict(*part.layers), python = part.state_dict();
  StateDict read = read_safetensors(path, [&](const std::string& name) {
                     return own.contains(name) || python.contains(name);
                   }).tensors;
  return in_order_of(all, read);
}

bool is_safetensors(const std::string& path) {
  return std::filesystem::path(path).extension() == ".safetensors";
}

bool is_without_values(const torch::nn::Module& model) {
  const auto parameters = model.parameters();
  return !parameters.empty() && parameters.front().is_meta();
}

// The prefixes of --weights_skip.
struct Skipped {
  explicit Skipped(const std::string& list) : prefixes(split_list(list)) {
    std::erase(prefixes, "");
  }

  bool contains(const std::string& name) const {
    return absl::c_any_of(prefixes, [&](const std::string& each) {
      return name.starts_with(each);
    });
  }

  std::vector<std::string> prefixes;
};

// Returns "62 of 62 tensors loaded from PATH". Throws if all names are skipped.
std::string line_of(const StateDict& model, const Skipped& skipped,
                    const std::string& path) {
  const auto count = absl::c_count_if(
      model.keys(),
      [&](const std::string& name) { return skipped.contains(name); });
  const auto all = static_cast<std::ptrdiff_t>(model.size());
  TORCH_CHECK_VALUE(
      count < all, "--weights_skip=", absl::StrJoin(skipped.prefixes, ","),
      ": all ", all, " tensors of the model are skipped, so that nothing of ",
      path, " would be loaded");
  return absl::StrCat(all - count, " of ", all, " tensors loaded from ", path);
}

// Throws if the weights of a folder have changed a dtype.
void check_dtypes(const StateDict& before, const StateDict& after,
                  const std::string& path) {
  for (const auto& item : after) {
    const auto dtype = before[item.key()].scalar_type();
    TORCH_CHECK_VALUE(
        item.value().scalar_type() == dtype, "--weights=", path, ": '",
        item.key(), "' is ", item.value().scalar_type(),
        ", but --model was exported in ", dtype,
        "; convert with --weights_dtype=", internal::find_dtype(dtype)->python,
        ", or export the model in ", item.value().scalar_type());
  }
}

// Loads a folder of transformers into an exported program.
InitialWeights load_folder(ExportedModel& model, const std::string& path,
                           const Skipped& skipped, const std::string& dtype) {
  HuggingFaceOptions options;
  options.skip(skipped.prefixes);
  if (!dtype.empty()) {
    const auto* found =
        internal::find_dtype(&internal::DtypeNames::python, dtype);
    TORCH_CHECK_VALUE(
        found && c10::isFloatingType(found->dtype) && found->packed == 1,
        "--weights_dtype=", dtype,
        ": must be float32, bfloat16, float16 or float64");
    options.dtype(found->dtype);
  }
  const StateDict before = model.state_dict();
  const std::string line = line_of(before, skipped, path);
  load_hugging_face(path, model, options);
  check_dtypes(before, model.state_dict(), path);
  return {
      line, hugging_face_checksum(path),
      [path, options](ExportedModel& part) {
        load_hugging_face(path, part, options);
      },
      /*sets_all=*/absl::c_none_of(before.keys(), [&](const std::string& name) {
        return skipped.contains(name);
      })};
}

}  // namespace

StateDict read_named_tensors(const std::string& flag, const std::string& path,
                             const std::string& entry) {
  TORCH_CHECK_VALUE(internal::is_torch_file(path) || is_safetensors(path), flag,
                    "=", path, ": should end in .pt, .pth or .safetensors");
  TORCH_CHECK_VALUE(internal::is_torch_file(path) || entry.empty(), flag,
                    "_entry=", entry, ": ", path,
                    " is a .safetensors file, which has no entries");
  return internal::is_torch_file(path) ? read_torch_file(path, entry)
                                       : read_safetensors(path).tensors;
}

InitialWeights load_initial_weights(torch::nn::Sequential& model,
                                    ModelSource& source,
                                    const std::string& path,
                                    const std::string& skip,
                                    const std::string& entry,
                                    const std::string& dtype) {
  std::error_code error;
  const bool of_folder = std::filesystem::is_directory(path, error);
  TORCH_CHECK_VALUE(!of_folder || entry.empty(), "--weights_entry=", entry,
                    ": ", path, " is a folder, which has no entries");
  TORCH_CHECK_VALUE(dtype.empty() || (of_folder && source.exported()),
                    "--weights_dtype=", dtype,
                    ": is for a folder of transformers and a .pt2 file; other "
                    "weights are converted to the dtypes of the model");
  const Skipped skipped(skip);
  if (of_folder && source.exported()) {
    return load_folder(*source.exported(), path, skipped, dtype);
  }
  // A process of several compares only names and shapes here.
  const bool by_parts =
      !of_folder && is_safetensors(path) && is_without_values(*model);
  const StateDict tensors_of_file =
      of_folder                       ? read_hugging_face(path)
      : internal::is_torch_file(path) ? internal::map_torch_file(path, entry)
      : by_parts
          ? read_safetensors(path, [](const auto&) { return false; }).tensors
          : read_named_tensors("--weights", path, entry);
  // Keeps names that torchvision does not have.
  const StateDict given =
      rename(tensors_of_file, inverse(source.torchvision_names()));
  const NamedTensors tensors = named_tensors(model, source.exported(), given);
  StateDict wanted;
  for (const auto& item : given) {
    if (!skipped.contains(item.key())) wanted.insert(item.key(), item.value());
  }
  StateDict loaded = in_order_of(tensors.dict, wanted);
  const uint32_t sum = by_parts ? hugging_face_checksum(path)
                                : hugging_face_checksum(tensors_of_file);
  for (const auto& item : tensors.dict) {
    if (!skipped.contains(item.key())) continue;
    wanted.insert(item.key(), item.value().clone());
  }
  const std::string line = line_of(tensors.dict, skipped, path);
  if (is_without_values(*model)) {
    check_state_dict(tensors.dict, wanted);
  } else {
    tensors.load(wanted);
  }
  return {line, sum,
          [loaded = std::move(loaded), by_parts, path](ExportedModel& part) {
            load_part(part, by_parts ? read_for(part, loaded, path) : loaded);
          }};
}

// ---- Adapters

namespace {

constexpr char kFanInFanOut[] = "fan_in_fan_out";

LoraOptions lora_options(const Options& options) {
  return LoraOptions()
      .rank(options.lora_rank)
      .alpha(options.lora_alpha)
      .dropout(options.lora_dropout)
      .rank_stabilized(options.lora_rank_stabilized)
      .targets(split_list(options.lora_targets))
      .wrapper(options.lora_wrapper);
}

}  // namespace

Options with_adapter_options(Options options) {
  TORCH_CHECK_VALUE(options.lora_rank >= 0, "--lora_rank=", options.lora_rank,
                    ": must be at least 1, or 0 to train the weights");
  const bool has_adapters = options.lora_rank > 0 || !options.adapter.empty();
  const Options defaults;
  TORCH_CHECK_VALUE(
      has_adapters ||
          (options.lora_alpha == defaults.lora_alpha &&
           options.lora_dropout == defaults.lora_dropout &&
           options.lora_rank_stabilized == defaults.lora_rank_stabilized),
      "--lora_alpha=", options.lora_alpha,
      ", --lora_dropout=", options.lora_dropout,
      " and --lora_rank_stabilized=", options.lora_rank_stabilized,
      ": there are no adapters; give --lora_rank or --adapter");
  TORCH_CHECK_VALUE(!options.merge_lora || has_adapters,
                    "--merge_lora: there are no adapters; give --lora_rank or "
                    "--adapter");
  TORCH_CHECK_VALUE(!options.merge_lora || !options.save_weights.empty(),
                    "--merge_lora: needs --save_weights, the folder for the "
                    "weights with the adapters added");
  TORCH_CHECK_VALUE(
      options.save_weights.empty() || !has_adapters || options.merge_lora,
      "--save_weights=", options.save_weights,
      ": adapters are trained, and the weights do not change; --merge_lora "
      "writes the weights with the adapters added, or merge RUN_DIR/adapter "
      "into them later with tools:convert_weights --merge_lora");
  if (options.lora_rank > 0) {
    TORCH_CHECK_VALUE(!options.lora_targets.empty(),
                      "--lora_rank=", options.lora_rank,
                      " needs --lora_targets, such as q_proj,v_proj");
    return options;
  }
  TORCH_CHECK_VALUE(
      options.lora_targets.empty(), "--lora_targets=", options.lora_targets,
      options.adapter.empty()
          ? ": needs --lora_rank, which switches adapters on"
          : ": the targets are those of --adapter unless --lora_rank is given");
  if (options.adapter.empty()) return options;
  const LoraOptions given = read_lora_options(options.adapter);
  const auto check = [](const char* flag, double value, double none,
                        double of_adapter) {
    TORCH_CHECK_VALUE(value == none || value == of_adapter, flag, "=", value,
                      ", but that of --adapter is ", of_adapter,
                      "; leave out the flag, or give --lora_rank and "
                      "--lora_targets, too");
  };
  check("--lora_alpha", options.lora_alpha, defaults.lora_alpha, given.alpha());
  check("--lora_dropout", options.lora_dropout, defaults.lora_dropout,
        given.dropout());
  check("--lora_rank_stabilized", options.lora_rank_stabilized,
        defaults.lora_rank_stabilized, given.rank_stabilized());
  options.lora_rank = given.rank();
  options.lora_alpha = given.alpha();
  options.lora_dropout = given.dropout();
  options.lora_rank_stabilized = given.rank_stabilized();
  options.lora_targets = absl::StrJoin(given.targets(), ",");
  return options;
}

void add_adapters(torch::nn::Sequential layers, const Options& options) {
  if (!trains_adapters(options)) return;
  torch::manual_seed(data::mix_seed(options.seed, 2));
  add_lora(layers, lora_options(options));
}

void save_adapter(Engine& engine, const Options& options) {
  std::string mine;
  if (engine.replica() == 0) {
    mine = safetensors_bytes(
        lora_state_dict(engine.module()),
        {{kFanInFanOut, lora_fan_in_fan_out(engine.module()) ? "1" : ""}});
  }
  StateDict all;
  bool fan_in_fan_out = false;
  for (const std::string& each : engine.gather(mine)) {
    if (each.empty()) continue;
    const Safetensors part = parse_safetensors(each.data(), each.size());
    fan_in_fan_out |= !part.metadata.at(kFanInFanOut).empty();
    for (const auto& item : part.tensors) all.insert(item.key(), item.value());
  }
  if (engine.rank() != 0) return;
  const std::filesystem::path folder(options.run_dir);
  save_lora((folder / "adapter").string(), all, lora_options(options),
            fan_in_fan_out);
}

// ---- The model of a run

namespace {

// Returns the module after which the names of --save_weights begin; "" for
// none. A folder of transformers has names of its own.
std::string wrapper_of_files(const Options& options) {
  return std::filesystem::is_directory(options.weights) ? ""
                                                        : options.lora_wrapper;
}

// Returns `name` without the module `wrapper` in front, which may be empty.
std::string without_wrapper(const std::string& name,
                            const std::string& wrapper) {
  const bool is_inside = !wrapper.empty() && name.starts_with(wrapper + ".");
  return is_inside ? name.substr(wrapper.size() + 1) : name;
}

// Throws c10::ValueError if two of Python's names are equal without the
// wrapper, so that a file cannot have both.
void check_wrapper(const StateDict& python, const std::string& wrapper) {
  for (const std::string& name : python.keys()) {
    const std::string inside = without_wrapper(name, wrapper);
    TORCH_CHECK_VALUE(inside == name || !python.contains(inside),
                      "--lora_wrapper=", wrapper,
                      ": --save_weights cannot write '", name, "' as '", inside,
                      "', since the model has both; leave out --lora_wrapper");
  }
}

// Loads the values of Options::adapter, if it is set. `whole`: `layers` are the
// whole model, so that they must have all adapters of the folder.
void load_adapter(torch::nn::Sequential layers, const Options& options,
                  bool whole) {
  if (!options.adapter.empty()) load_lora(options.adapter, *layers, whole);
}

std::string text_of_checksum(uint32_t checksum) {
  return "of checksum " + std::to_string(checksum);
}

// Returns the checksum of the tensors in Options::adapter; 0 without it.
uint32_t adapter_checksum(const Options& options) {
  if (options.adapter.empty()) return 0;
  return hugging_face_checksum(options.adapter + "/adapter_model.safetensors");
}

}  // namespace

LoadedModel load_model(const Options& options, ModelSource& source,
                       const std::function<torch::nn::Sequential()>& make,
                       bool resumes,
                       const std::function<void(const FlagValues&)>& check_same,
                       const Print& say) {
  TORCH_CHECK_VALUE(
      !options.weights.empty() ||
          (options.weights_skip.empty() && options.weights_entry.empty() &&
           options.weights_dtype.empty()),
      "--weights_skip=", options.weights_skip,
      ", --weights_entry=", options.weights_entry,
      " and --weights_dtype=", options.weights_dtype,
      " say how --weights is loaded, which is not given");
  const ExportedFile* const file = source.file();
  const bool reads_parts = options.distributed && file;
  LoadedModel model;
  {
    std::optional<MetaGuard> meta;
    if (reads_parts) meta.emplace();
    model.layers = make();
  }
  if (source.exported() && !options.save_weights.empty()) {
    check_wrapper(source.exported()->state_dict(), wrapper_of_files(options));
  }
  std::function<void(ExportedModel&)> load_part;
  bool reads_weights = true;  // from the exported program
  // Run checkpoints of adapters do not have the weights.
  if (!options.weights.empty() && (!resumes || trains_adapters(options))) {
    InitialWeights loaded = load_initial_weights(
        model.layers, source, options.weights, options.weights_skip,
        options.weights_entry, options.weights_dtype);
    const std::string checksum = text_of_checksum(loaded.checksum);
    check_same({{"--weights", checksum}});
    say(loaded.line);
    model.base = "--weights " + checksum + ", ";
    load_part = std::move(loaded.load_part);
    reads_weights = !loaded.sets_all;
  } else if (!options.weights.empty()) {
    say(absl::StrCat("--weights=", options.weights,
                     " is not read: the run goes on with its own weights; to "
                     "begin with these, give another --run_dir"));
  }
  // Processes read copies of the file. The checksum of the flag --model does
  // not include the weights.
  const std::string of_file =
      file ? "with weights " + text_of_checksum(file->weights_checksum()) : "";
  if (!resumes && file) check_same({{"--model", of_file}});
  if (trains_adapters(options)) {
    check_same({{"--adapter", text_of_checksum(adapter_checksum(options))}});
    model.base +=
        "--model " + (file ? of_file : "with initial weights of the seed");
  } else {
    model.base.clear();
  }
  if (reads_parts) {
    model.make = [file, reads_weights, load_part = std::move(load_part),
                  options](int64_t first, int64_t count) {
      ExportedModel part = file->read(first, count, reads_weights);
      if (load_part) load_part(part);
      add_adapters(part.layers, options);
      load_adapter(part.layers, options, /*whole=*/false);
      return part.layers;
    };
  }
  precision_of(options.precision).convert(model.layers);
  add_adapters(model.layers, options);
  // If the layers have no values, only names and shapes are compared.
  load_adapter(model.layers, options, /*whole=*/true);
  return model;
}

// ---- Final weights

namespace {

// Returns the tensors of `dict`, which a pipeline of an exported program has,
// under Python's names: without the name of their layer, and without buffers
// that are not persistent. Names in the module `wrapper`, if that is not empty,
// begin after it.
StateDict with_pythons_names(const StateDict& dict, const StateDict& python,
                             const std::string& wrapper) {
  StateDict result;
  for (const auto& item : dict) {
    std::string name = python_name(item.key());
    if (!python.contains(name)) continue;
    name = without_wrapper(name, wrapper);
    // A constant buffer may be in several layers.
    if (!result.contains(name)) result.insert(name, item.value());
  }
  return result;
}

// Returns the tensors that this process writes to Options::save_weights.
StateDict final_weights(const Options& options, Engine& engine,
                        ModelSource& source) {
  if (engine.replica() > 0) return StateDict();
  const StateDict tensors = state_dict(engine.module());
  ExportedModel* const exported = source.exported();
  if (!exported) return tensors;
  StateDict named = with_pythons_names(tensors, exported->state_dict(),
                                       wrapper_of_files(options));
  if (!std::filesystem::is_directory(options.weights)) return named;
  return rename(named, hugging_face_names(options.weights, *exported));
}

}  // namespace

void check_save_weights(const Options& options, Engine& engine,
                        ModelSource& source) {
  if (options.save_weights.empty()) return;
  internal::together(engine.shard(), [&] {
    internal::lay_out(final_weights(options, engine, source));
    return "";
  });
}

std::string save_weights(const Options& options, Engine& engine,
                         ModelSource& source) {
  internal::together(engine.shard(), [&] {
    if (options.merge_lora) merge_lora(engine.module());
    return "";
  });
  save_hugging_face(options.save_weights,
                    final_weights(options, engine, source), options.shard_size,
                    engine.shard());
  return "weights saved in " + options.save_weights;
}

}  // namespace gpipe::train_program
