#include "models/weights/hugging_face.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "gpipe/base/crc32c.h"
#include "gpipe/base/text.h"
#include "models/weights/files.h"
#include "models/weights/formats.h"
#include "models/weights/safetensors_file.h"
#include "models/weights/safetensors_folder.h"
#include "models/weights/weight_slots.h"

namespace gpipe {
namespace {

using internal::FolderWeight;
using internal::in_quotes;
using internal::NamePrefix;
using internal::NameSet;
using internal::SafetensorsFolder;
using internal::WeightSlot;
using internal::WeightSlots;
using Stored = std::map<std::string, FolderWeight>;  // by name in the folder

// ---- Names

// Returns the names of the program's weights that state_dict() has.
NameSet names_of(const WeightSlots& weights) {
  NameSet names;
  for (const WeightSlot& each : weights.slots) {
    if (each.persistent) names.insert(each.name);
  }
  return names;
}

// Returns the prefix in which names of the program and of a folder differ.
NamePrefix prefix_of(const NameSet& names, const Stored& folder) {
  NameSet stored;
  for (const auto& [name, unused] : folder) stored.insert(name);
  return NamePrefix(names, stored);
}

// ---- What is loaded from where

// Tied weights of the program, of which at least one name is in the folder.
struct Source {
  // By the program's names.
  std::vector<std::pair<std::string, FolderWeight>> stored;
  std::vector<at::Tensor> tensors;                     // in the model, or none
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // to load as
};

at::Tensor without_values(at::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
}

class Loading {
 public:
  Loading(const SafetensorsFolder& folder, const WeightSlots& weights,
          const HuggingFaceOptions& options)
      : options_(options),
        slots_(weights.slots),
        names_(names_of(weights)),
        stored_(internal::folder_weights(folder, names_)),
        prefix_(prefix_of(names_, stored_)) {
    TORCH_CHECK_VALUE(
        !options_.dtype() || c10::isFloatingType(*options_.dtype()),
        "HuggingFaceOptions::dtype is ", *options_.dtype(),
        ", but must be a floating-point dtype");
    find_sources();
    check_names();
    check_dtypes(weights.dtype_constants);
    if (!on_meta()) check_tied();
  }

  // Reads the tensors of this part of the program.
  void run() {
    const at::NoGradGuard no_grad;
    for (const auto& [tie, source] : sources_) check_values(source);
    for (const auto& [tie, source] : sources_) {
      if (!source.tensors.empty()) load(source);
    }
  }

 private:
  // Returns the name in the program of a tensor of the folder.
  std::string in_program(const std::string& name) const {
    return names_.count(name) > 0 ? name : prefix_.in_model(name);
  }

  bool is_skipped(const std::string& name) const {
    return std::ranges::any_of(options_.skip(), [&](const std::string& each) {
      return name.starts_with(each);
    });
  }

  // Returns whether a tensor is a buffer that transformers once saved, and
  // ignores today: a causal mask, positions or frequencies, which are constants
  // of the code.
  static bool is_old_buffer(const std::string& name,
                            const FolderWeight& tensor) {
    constexpr const char* kOld[] = {".attn.masked_bias", ".rotary_emb.inv_freq",
                                    ".position_ids"};
    const bool is_mask =
        name.ends_with(".attn.bias") && tensor.sizes.size() == 4;
    return is_mask || std::ranges::any_of(kOld, [&](const char* each) {
             return name.ends_with(each);
           });
  }

  // Returns whether the model has no values, so that none are read.
  bool on_meta() const {
    return std::ranges::any_of(slots_, [](const auto& each) {
      return !each.tensors.empty() && each.tensors[0].is_meta();
    });
  }

  void find_sources() {
    Stored stored;  // by the program's names
    for (const auto& [name, each] : stored_) {
      const auto [other, is_new] = stored.emplace(in_program(name), each);
      TORCH_CHECK_VALUE(is_new, each.path(), ": ", in_quotes(name),
                        " is there twice: with and without the prefix ",
                        in_quotes(prefix_.text()));
    }
    for (const WeightSlot& slot : slots_) {
      if (!slot.persistent || is_skipped(slot.name)) continue;
      const auto found = stored.find(slot.name);
      if (found == stored.end()) continue;
      Source& source = sources_[slot.tie];
      source.stored.emplace_back(slot.name, found->second);
      source.tensors = slot.tensors;
      const c10::ScalarType dtype = found->second.dtype;
      source.dtype =
          c10::isFloatingType(dtype) ? options_.dtype().value_or(dtype) : dtype;
    }
  }

  // Throws what load_state_dict() throws for names and shapes.
  void check_names() const {
    StateDict own, dict;
    std::unordered_set<std::string> known;
    for (const WeightSlot& slot : slots_) {
      known.insert(slot.name);
      if (!slot.persistent || is_skipped(slot.name) ||
          own.contains(slot.name)) {
        continue;
      }
      own.insert(slot.name, without_values(slot.sizes, slot.dtype));
      const auto found = sources_.find(slot.tie);
      if (found == sources_.end()) continue;
      // The tensor of this name, or else one of another name that is tied.
      const auto& stored = found->second.stored;
      auto at = std::ranges::find_if(
          stored, [&](const auto& each) { return each.first == slot.name; });
      if (at == stored.end()) at = stored.begin();
      dict.insert(slot.name,
                  without_values(at->second.sizes, at->second.dtype));
    }
    for (const auto& [name, each] : stored_) {
      const std::string mine = in_program(name);
      if (known.count(mine) > 0 || is_skipped(mine) ||
          is_old_buffer(mine, each)) {
        continue;
      }
      dict.insert(mine, without_values(each.sizes, each.dtype));
    }
    try {
      check_state_dict(own, dict, LoadOptions().strict(options_.strict()));
    } catch (c10::Error& error) {
      const auto has_others = [](const StateDict& names, const StateDict& in) {
        return std::ranges::any_of(
            names, [&](const auto& each) { return !in.contains(each.key()); });
      };
      if (has_others(own, dict) && has_others(dict, own)) {
        error.add_context(
            "transformers saves some models with older names: "
            "model.save_pretrained(folder, save_original_format=False) keeps "
            "those of the program");
      }
      throw;
    }
  }

  // `nodes`: those that compute in the dtypes of the export.
  void check_dtypes(const std::vector<std::string>& nodes) const {
    const WeightSlot* changed = nullptr;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    for (const WeightSlot& slot : slots_) {
      const auto found = sources_.find(slot.tie);
      if (found == sources_.end() || found->second.dtype == slot.dtype) {
        continue;
      }
      changed = &slot;
      dtype = found->second.dtype;
      break;
    }
    if (!changed) return;
    constexpr std::size_t kListed = 3;
    TORCH_CHECK_VALUE(
        nodes.empty(), in_quotes(changed->name), " would become ", dtype,
        ", but the program was exported in ", changed->dtype, ", and ",
        nodes.size(), " of its nodes compute in the dtypes of the export:",
        first_lines(nodes, kListed),
        "\nConvert the weights with "
        "HuggingFaceOptions().dtype() (--weights_dtype in the shell) to ",
        internal::find_dtype(changed->dtype)->python,
        ", or export the model in ", dtype);
  }

  void check_tied() const {
    for (const auto& [tie, source] : sources_) {
      if (source.tensors.empty()) continue;
      const auto& [name, first] = source.stored.front();
      for (const auto& [other, each] : source.stored) {
        if (&each == &first) continue;
        TORCH_CHECK_VALUE(
            internal::same_bytes(first, each), each.path(), ": ",
            in_quotes(name), " and ", in_quotes(other),
            " are one weight in the exported program, but have different "
            "values here; export the model of this folder, without tied "
            "weights");
      }
    }
  }

  // Throws c10::ValueError if values are beyond the range of the dtype to which
  // they would be converted.
  static void check_values(const Source& source) {
    const auto& [name, stored] = source.stored.front();
    if (source.tensors.empty() || source.tensors[0].is_meta() ||
        !internal::may_narrow(stored.dtype, source.dtype)) {
      return;
    }
    internal::convert_in_range(name, read(stored), source.dtype);
  }

  static at::Tensor read(const FolderWeight& stored) {
    at::Tensor values =
        at::empty(stored.sizes, at::TensorOptions(stored.dtype));
    stored.read(values.mutable_data_ptr());
    return values;
  }

  // Reads the values into `source.tensors`.
  static void load(const Source& source) {
    const auto& [name, stored] = source.stored.front();
    at::Tensor first = source.tensors[0];
    if (first.is_meta()) {
      for (at::Tensor each : source.tensors) {
        if (each.scalar_type() != source.dtype) {
          replace(each, without_values(stored.sizes, source.dtype));
        }
      }
      return;
    }
    const auto options = at::TensorOptions(stored.dtype).device(at::kCPU);
    if (source.dtype == stored.dtype && first.options().type_equal(options) &&
        first.is_contiguous()) {
      stored.read(first.mutable_data_ptr());
      if (!first.is_inference()) first.unsafeGetTensorImpl()->bump_version();
    } else {
      set(first, read(stored).to(source.dtype));
    }
    for (std::size_t k = 1; k < source.tensors.size(); ++k) {
      const at::Tensor& each = source.tensors[k];
      if (!each.is_same(first)) set(each, first.clone());
    }
  }

  // Gives a tensor these values, whose memory nothing else uses, and their
  // dtype.
  static void set(at::Tensor tensor, const at::Tensor& values) {
    if (tensor.scalar_type() == values.scalar_type()) {
      tensor.copy_(values);
    } else {
      replace(tensor, values.to(tensor.device()));
    }
  }

  // Gives a tensor the memory of `values`, whose dtype differs.
  static void replace(at::Tensor& tensor, const at::Tensor& values) {
    tensor.set_data(values);
    tensor.mutable_grad().reset();
    // Whoever has noted the version sees that the values are others.
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }

  const HuggingFaceOptions& options_;
  const std::vector<WeightSlot>& slots_;
  const NameSet names_;
  const Stored stored_;
  const NamePrefix prefix_;
  std::map<int, Source> sources_;  // by WeightSlot::tie
};

// Calls `body`. Puts the folder in front of errors that do not begin with it.
template <typename Body>
auto with_folder(const std::string& folder, const Body& body) {
  try {
    return body();
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    TORCH_CHECK_VALUE(false, text.starts_with(folder) ? "" : folder + ": ",
                      text);
  }
}

}  // namespace

void internal::load_hugging_face(const std::string& folder,
                                 const WeightSlots& weights,
                                 const HuggingFaceOptions& options) {
  with_folder(folder, [&] {
    const SafetensorsFolder files(folder);
    Loading(files, weights, options).run();
  });
}

StateDict read_hugging_face(const std::string& folder) {
  const SafetensorsFolder files(folder);
  StateDict tensors;
  for (const auto& [name, each] : files.tensors()) {
    at::Tensor tensor =
        at::empty(each.entry->sizes,
                  at::TensorOptions(each.entry->dtype).device(at::kCPU));
    if (each.bytes() > 0) each.read(tensor.mutable_data_ptr());
    tensors.insert(name, std::move(tensor));
  }
  return tensors;
}

NameTable internal::hugging_face_names(const std::string& folder,
                                       const WeightSlots& weights) {
  const auto names = names_of(weights);
  const NamePrefix prefix = prefix_of(
      names, internal::folder_weights(SafetensorsFolder(folder), names));
  NameTable table;
  for (const std::string& name : names) {
    table.emplace_back(name, prefix.in_file(name));
  }
  std::ranges::sort(table);
  return table;
}

namespace {

// Returns the tensors without those that are there under an earlier name.
StateDict without_tied(const StateDict& tensors) {
  using Key = std::tuple<const void*, at::ScalarType, std::vector<int64_t>,
                         std::vector<int64_t>, bool, bool>;
  std::set<Key> known;
  StateDict result;
  for (const auto& item : tensors) {
    const at::Tensor& each = item.value();
    if (each.defined() && each.has_storage() && !each.is_meta() &&
        each.numel() > 0 &&
        !known
             .emplace(each.const_data_ptr(), each.scalar_type(),
                      each.sizes().vec(), each.strides().vec(), each.is_conj(),
                      each.is_neg())
             .second) {
      continue;
    }
    result.insert(item.key(), each);
  }
  return result;
}

constexpr uint64_t kFirstBytes = 64;

// Returns the checksum `sum` with a tensor, see hugging_face_checksum().
// `first`: the first kFirstBytes bytes, or all.
uint32_t with_tensor(uint32_t sum, const std::string& name,
                     at::ScalarType dtype, at::IntArrayRef sizes,
                     std::string_view first) {
  using internal::crc32c;
  sum = crc32c(name.data(), name.size() + 1, sum);
  sum = crc32c(&dtype, sizeof dtype, sum);
  sum = crc32c(sizes.data(), sizes.size() * sizeof sizes[0], sum);
  return crc32c(first.data(), first.size(), sum);
}

}  // namespace

uint32_t hugging_face_checksum(const std::string& folder) {
  const SafetensorsFolder files(folder);
  uint32_t sum = 0;
  for (const auto& [name, each] : files.tensors()) {
    std::string first(std::min(kFirstBytes, each.bytes()), '\0');
    each.file->read(*each.entry, 0, first.data(), first.size());
    sum = with_tensor(sum, name, each.entry->dtype, each.entry->sizes, first);
  }
  return sum;
}

uint32_t hugging_face_checksum(const StateDict& tensors) {
  std::map<std::string, at::Tensor> sorted;
  for (const auto& item : without_tied(tensors)) {
    sorted.emplace(item.key(), item.value());
  }
  uint32_t sum = 0;
  for (const auto& [name, each] : sorted) {
    internal::check_can_be_written(name, each);
    const at::Tensor written = internal::as_written(each);
    sum = with_tensor(sum, name, each.scalar_type(), each.sizes(),
                      {static_cast<const char*>(written.const_data_ptr()),
                       std::min<std::size_t>(kFirstBytes, written.nbytes())});
  }
  return sum;
}

// ---- Saving

namespace {

using internal::AtomicFile;
using internal::remove_file;
using internal::together;

// ---- The plan, which all processes compute

struct Shard {
  std::size_t process = 0;
  std::string file;
  std::vector<std::string> names;
  uint64_t bytes = 0;
};

struct Plan {
  std::vector<Shard> shards;
  uint64_t bytes = 0, elements = 0;
};

// Returns names, bytes and elements of the tensors as text.
std::string described(const StateDict& tensors) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& item : tensors) {
    list.push_back({item.key(), item.value().nbytes(), item.value().numel()});
  }
  return list.dump();
}

// `processes`: the results of described().
Plan plan_of(const std::vector<std::string>& processes, uint64_t shard_bytes) {
  Plan plan;
  std::set<std::string> known;
  for (std::size_t k = 0; k < processes.size(); ++k) {
    bool is_new = true;  // whether the next tensor begins a shard
    for (const auto& each : nlohmann::json::parse(processes[k])) {
      const auto name = each.at(0).get<std::string>();
      const auto bytes = each.at(1).get<uint64_t>();
      if (!known.insert(name).second) continue;
      plan.bytes += bytes;
      plan.elements += each.at(2).get<uint64_t>();
      if (is_new || plan.shards.back().bytes + bytes > shard_bytes) {
        plan.shards.push_back({k, "", {}, 0});
        is_new = false;
      }
      plan.shards.back().names.push_back(name);
      plan.shards.back().bytes += bytes;
    }
  }
  TORCH_CHECK_VALUE(!plan.shards.empty(), "there are no tensors to save");
  const std::size_t count = plan.shards.size();
  for (std::size_t k = 0; k < count; ++k) {
    if (count == 1) {
      plan.shards[k].file = internal::kSafetensorsName;
      break;
    }
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", k + 1,
                  count);
    plan.shards[k].file = name;
  }
  return plan;
}

// ---- Files

// Returns whether `name` is that of one of several files, such as
// "model-00001-of-00003.safetensors".
bool is_shard_name(const std::string& name) {
  const std::string form = "model-#####-of-#####.safetensors";
  return name.size() == form.size() &&
         std::equal(name.begin(), name.end(), form.begin(), [](char a, char b) {
           return b == '#' ? a >= '0' && a <= '9' : a == b;
         });
}

// Removes the index if a file that it names is about to be replaced: otherwise
// it would name old and new files if the process dies.
void remove_old_index(const std::string& folder, const Plan& plan) {
  const bool replaces =
      std::ranges::any_of(plan.shards, [&](const Shard& each) {
        return is_shard_name(each.file) &&
               std::filesystem::exists(folder + "/" + each.file);
      });
  if (!replaces) return;
  remove_file(folder + "/" + internal::kSafetensorsIndexName);
  internal::sync_folder(folder);
}

void write_index(const std::string& folder, const Plan& plan) {
  internal::SafetensorsIndex index;
  for (const Shard& shard : plan.shards) {
    for (const std::string& name : shard.names) {
      index.emplace_back(name, shard.file);
    }
  }
  const std::string text =
      internal::safetensors_index_text(index, plan.bytes, plan.elements);
  AtomicFile file(folder + "/" + internal::kSafetensorsIndexName);
  file.write(text.data(), text.size());
  file.commit();
}

// Removes the files of an earlier save.
void remove_old_files(const std::string& folder, const Plan& plan) {
  std::set<std::string> kept;
  for (const Shard& each : plan.shards) kept.insert(each.file);
  if (plan.shards.size() > 1) {
    kept.insert(internal::kSafetensorsIndexName);
  } else {  // before the files that it names
    remove_file(folder + "/" + internal::kSafetensorsIndexName);
  }
  std::vector<std::string> old;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if ((name == internal::kSafetensorsName || is_shard_name(name)) &&
        kept.count(name) == 0) {
      old.push_back(name);
    }
  }
  if (error) internal::fail_file(folder, "cannot be listed", error.value());
  for (const std::string& each : old) remove_file(folder + "/" + each);
}

// Returns complete files without their names.
std::vector<std::unique_ptr<AtomicFile>> write_files(const std::string& folder,
                                                     const StateDict& tensors,
                                                     const Plan& plan,
                                                     std::size_t process) {
  std::vector<std::unique_ptr<AtomicFile>> files;
  for (const Shard& shard : plan.shards) {
    if (shard.process != process) continue;
    StateDict part;
    for (const std::string& name : shard.names) {
      part.insert(name, tensors[name]);
    }
    const auto layout = internal::lay_out(part, {{"format", "pt"}});
    files.push_back(std::make_unique<AtomicFile>(folder + "/" + shard.file));
    internal::write_laid_out(*files.back(), part, layout);
    files.back()->finish();
  }
  return files;
}

}  // namespace

void save_hugging_face(const std::string& folder, const StateDict& tensors,
                       int64_t shard_bytes) {
  save_hugging_face(folder, tensors, shard_bytes, RunShard());
}

void save_hugging_face(const std::string& folder, const StateDict& tensors,
                       int64_t shard_bytes, const RunShard& shard) {
  StateDict own;
  const std::vector<std::string> all = together(shard, [&] {
    TORCH_CHECK_VALUE(shard_bytes > 0, "files of at most ", shard_bytes,
                      " bytes; must be at least 1");
    internal::check_folder_name(folder);
    own = without_tied(tensors);
    internal::lay_out(own);  // throws for what cannot be written
    return described(own);
  });
  internal::share_folder(folder, shard);
  const Plan plan = plan_of(all, static_cast<uint64_t>(shard_bytes));
  const bool first = shard.index == 0;
  std::vector<std::unique_ptr<AtomicFile>> files;
  together(shard, [&] {
    files =
        write_files(folder, own, plan, static_cast<std::size_t>(shard.index));
    return "";
  });
  together(shard, [&] {
    if (first) remove_old_index(folder, plan);
    return "";
  });
  together(shard, [&] {
    for (const auto& each : files) each->commit();
    return "";
  });
  together(shard, [&] {
    if (!first) return "";
    if (plan.shards.size() > 1) write_index(folder, plan);
    remove_old_files(folder, plan);
    return "";
  });
}

}  // namespace gpipe
