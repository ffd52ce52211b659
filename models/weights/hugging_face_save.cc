#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "models/weights/atomic_file.h"
#include "models/weights/file_writer.h"
#include "models/weights/hugging_face.h"
#include "models/weights/safetensors_folder.h"
#include "models/weights/safetensors_index.h"
#include "models/weights/safetensors_layout.h"

namespace gpipe {
namespace {

using internal::AtomicFile;
using internal::together;

// Returns the tensors without those that are there under an earlier name.
StateDict without_tied(const StateDict& tensors) {
  using Key = std::tuple<const void*, at::ScalarType, std::vector<int64_t>,
                         std::vector<int64_t>>;
  std::set<Key> known;
  StateDict result;
  for (const auto& item : tensors) {
    const at::Tensor& each = item.value();
    if (each.defined() && each.has_storage() && !each.is_meta() &&
        each.numel() > 0 &&
        !known
             .emplace(each.const_data_ptr(), each.scalar_type(),
                      each.sizes().vec(), each.strides().vec())
             .second) {
      continue;
    }
    result.insert(item.key(), each);
  }
  return result;
}

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

// Removes a file if it exists.
void remove_file(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) internal::fail_file(path, "cannot be removed", error.value());
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) internal::fail_file(folder, "cannot be created", error.value());
}

// Removes the index if a file that it names is about to be replaced: otherwise
// it would name old and new files if the process dies.
void remove_old_index(const std::string& folder, const Plan& plan) {
  const bool replaces = std::any_of(
      plan.shards.begin(), plan.shards.end(), [&](const Shard& each) {
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
    own = without_tied(tensors);
    internal::lay_out(own);  // throws for what cannot be written
    if (shard.index == 0) make_folder(folder);
    return described(own);
  });
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
