#include "models/weights/safetensors_folder.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>

#include "gpipe/base/json.h"
#include "gpipe/base/text.h"
#include "models/weights/files.h"
#include "models/weights/formats.h"

namespace gpipe::internal {

// ---- The index

namespace {

constexpr char kWeightMap[] = "weight_map";

// Returns `name` if it does not lead out of the folder, as "../x" does.
const std::string& file_in_folder(const std::string& tensor,
                                  const std::string& name) {
  TORCH_CHECK_VALUE(
      !name.empty() && name != "." && name != ".." &&
          name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos,
      "says that ", in_quotes(tensor), " is in ", in_quotes(name),
      ", which is not the name of a file in this folder");
  return name;
}

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view json) {
  return read_json(json, "", {}, [](const Json& root) {
    SafetensorsIndex index;
    for (const auto& [name, file] : object(field(root, kWeightMap)).items()) {
      index.emplace_back(name, file_in_folder(name, internal::text(file)));
    }
    return index;
  });
}

std::string safetensors_index_text(const SafetensorsIndex& index,
                                   uint64_t bytes, uint64_t elements) {
  for (const auto& [name, file] : index) check_utf8(name, "safetensors");
  const std::map<std::string, std::string> sorted(index.begin(), index.end());
  const Json json = {
      {"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
      {kWeightMap, sorted}};
  return json.dump(/*indent=*/2, ' ', /*ensure_ascii=*/true) + "\n";
}

// ---- The folder

namespace {

// The largest index in bytes that is read.
constexpr uint64_t kMaxSafetensorsIndex = 100'000'000;

SafetensorsIndex read_index(const std::string& path) {
  const std::string text = with_prefix<c10::Error>("", [&] {
    const FileReader file(path);
    TORCH_CHECK_VALUE(file.size() <= kMaxSafetensorsIndex, path, ": has ",
                      file.size(), " bytes, and ", kMaxSafetensorsIndex,
                      " are the most that are read");
    std::string bytes(file.size(), '\0');
    file.read_at(0, bytes.data(), bytes.size());
    return bytes;
  });
  return with_prefix(path + ": ",
                     [&] { return parse_safetensors_index(text); });
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

void check_folder_name(const std::string& folder) {
  TORCH_CHECK_VALUE(!folder.empty(),
                    "the folder of the weights is an empty text; the current "
                    "folder is '.'");
}

SafetensorsFolder::SafetensorsFolder(const std::string& folder) {
  check_folder_name(folder);
  std::error_code error;
  if (std::filesystem::is_regular_file(folder, error)) {
    open(folder);
    return;
  }
  // transformers looks for the single file first, too.
  const std::string single = folder + "/" + kSafetensorsName;
  if (exists(single)) {
    open(single);
    return;
  }
  TORCH_CHECK_VALUE(
      exists(folder + "/" + kSafetensorsIndexName), folder, ": has neither ",
      kSafetensorsName, " nor ", kSafetensorsIndexName,
      exists(folder + "/pytorch_model.bin") ||
              exists(folder + "/pytorch_model.bin.index.json")
          ? "; its weights are pickled. Save them again in Python: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained("
            "folder)"
          : "");
  open_shards(folder);
}

void SafetensorsFolder::open(const std::string& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const SafetensorsFile& file = *files_.back();
  for (const SafetensorsEntry& entry : file.header().entries) {
    const auto [other, is_new] =
        tensors_.emplace(entry.name, Tensor{&file, &entry});
    TORCH_CHECK_VALUE(is_new, in_quotes(entry.name), " is in ",
                      other->second.file->path(), " and in ", path);
  }
}

void SafetensorsFolder::open_shards(const std::string& folder) {
  const std::string path = folder + "/" + kSafetensorsIndexName;
  const SafetensorsIndex index = read_index(path);
  std::map<std::string, std::string> first_of;  // file -> one of its tensors
  for (const auto& [name, file] : index) first_of.emplace(file, name);
  for (const auto& [file, name] : first_of) {
    try {
      open(folder + "/" + file);
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, error.what_without_backtrace(), "; ",
                        kSafetensorsIndexName, " says that ", in_quotes(name),
                        " is in this file");
    }
  }
  for (const auto& [name, file] : index) {
    const auto found = tensors_.find(name);
    TORCH_CHECK_VALUE(found != tensors_.end() &&
                          found->second.file->path() == folder + "/" + file,
                      folder, "/", file, ": lacks ", in_quotes(name),
                      ", which ", kSafetensorsIndexName,
                      " says is in this file");
  }
  if (tensors_.size() == index.size()) return;
  std::map<std::string, std::string> named(index.begin(), index.end());
  for (const auto& [name, tensor] : tensors_) {
    TORCH_CHECK_VALUE(named.count(name) > 0, tensor.file->path(), ": has ",
                      in_quotes(name), ", which ", kSafetensorsIndexName,
                      " does not name");
  }
}

// ---- Weights of a program

namespace {

using Tensor = SafetensorsFolder::Tensor;

// Returns whether both tensors have the same dtype, shape and bytes. Reads them
// piece by piece.
bool same_bytes(const Tensor& a, const Tensor& b) {
  if (a.entry->dtype != b.entry->dtype || a.entry->sizes != b.entry->sizes) {
    return false;
  }
  constexpr uint64_t kPiece = 1 << 20;
  std::string x, y;
  for (uint64_t at = 0; at < a.bytes(); at += kPiece) {
    x.resize(std::min(kPiece, a.bytes() - at));
    y.resize(x.size());
    a.file->read(*a.entry, at, x.data(), x.size());
    b.file->read(*b.entry, at, y.data(), y.size());
    if (x != y) return false;
  }
  return true;
}

constexpr char kGateUp[] = ".experts.gate_up_proj";

// A tensor of one expert.
struct Expert {
  std::string weight;  // the name of the weight of all experts
  std::size_t number = 0;
  std::size_t part = 0;  // of the parts of each expert
  std::size_t parts = 1;
};

// Returns what "x.experts.3.up_proj.weight" is, or nothing for other names.
std::optional<Expert> expert_of(const std::string& name) {
  constexpr std::string_view kExperts = ".experts.", kWeight = ".weight";
  const std::size_t at = name.rfind(kExperts);
  if (at == std::string::npos || !name.ends_with(kWeight)) return std::nullopt;
  const std::size_t begin = at + kExperts.size();
  const std::size_t dot = name.find('.', begin);
  // Up to 6 digits, so that the number fits.
  if (dot == begin || dot > begin + 6 ||
      !std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                   name.begin() + static_cast<std::ptrdiff_t>(dot),
                   [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  const std::string beginning = name.substr(0, at);
  const std::string kind =
      name.substr(dot + 1, name.size() - kWeight.size() - dot - 1);
  Expert expert;
  expert.number = std::stoul(name.substr(begin, dot - begin));
  if (kind == "down_proj" || kind == "w2") {
    expert.weight = beginning + ".experts.down_proj";
  } else if (kind == "gate_proj" || kind == "w1" || kind == "up_proj" ||
             kind == "w3") {
    expert.weight = beginning + kGateUp;
    expert.part = kind == "up_proj" || kind == "w3" ? 1 : 0;
    expert.parts = 2;
  } else {
    return std::nullopt;
  }
  return expert;
}

// Returns `name` with Mixtral's "block_sparse_moe" as the program names it.
std::string renamed(std::string name) {
  constexpr std::string_view kOld = ".block_sparse_moe.", kNew = ".mlp.";
  if (const std::size_t at = name.find(kOld); at != std::string::npos) {
    name.replace(at, kOld.size(), kNew);
  }
  return name;
}

// Returns the weight of all experts of a layer. `tensors`: by the number of the
// expert and of its part. `parts`: of each expert.
FolderWeight stacked(
    const std::string& name,
    const std::map<std::pair<std::size_t, std::size_t>, Tensor>& tensors,
    std::size_t parts) {
  FolderWeight weight;
  const SafetensorsEntry& first = *tensors.begin()->second.entry;
  std::size_t next = 0;
  for (const auto& [place, tensor] : tensors) {
    TORCH_CHECK_VALUE(place == std::pair(next / parts, next % parts),
                      tensor.file->path(), ": expert ", next / parts, " of ",
                      in_quotes(name), " lacks a tensor, but there is ",
                      in_quotes(tensor.entry->name));
    TORCH_CHECK_VALUE(
        tensor.entry->dtype == first.dtype &&
            tensor.entry->sizes == first.sizes && first.sizes.size() == 2,
        tensor.file->path(), ": ", in_quotes(tensor.entry->name), " is ",
        tensor.entry->dtype, " of shape ",
        c10::IntArrayRef(tensor.entry->sizes), ", but ", in_quotes(first.name),
        " is ", first.dtype, " of shape ", c10::IntArrayRef(first.sizes),
        "; experts need two dimensions and equal shapes");
    weight.pieces.push_back(tensor);
    ++next;
  }
  TORCH_CHECK_VALUE(next % parts == 0, weight.path(), ": expert ", next / parts,
                    " of ", in_quotes(name), " lacks a tensor");
  weight.dtype = first.dtype;
  weight.sizes = {static_cast<int64_t>(next / parts),
                  static_cast<int64_t>(parts) * first.sizes[0], first.sizes[1]};
  return weight;
}

}  // namespace

void FolderWeight::read(void* to) const {
  auto* next = static_cast<char*>(to);
  for (const Tensor& each : pieces) {
    each.read(next);
    next += each.bytes();
  }
}

std::map<std::string, FolderWeight> folder_weights(
    const SafetensorsFolder& folder,
    const std::unordered_set<std::string>& program) {
  const bool stacks = std::ranges::any_of(
      program, [](const auto& name) { return name.ends_with(kGateUp); });
  std::map<std::string, FolderWeight> weights;
  const auto add = [&](const std::string& name, FolderWeight weight) {
    const std::string path = weight.path();
    TORCH_CHECK_VALUE(weights.emplace(name, std::move(weight)).second, path,
                      ": ", in_quotes(name),
                      " is there twice: in one tensor, "
                      "and in tensors of one expert or with Mixtral's name");
  };
  struct Experts {
    std::map<std::pair<std::size_t, std::size_t>, Tensor> tensors;
    std::size_t parts = 1;
  };
  std::map<std::string, Experts> experts;
  for (const auto& [stored, tensor] : folder.tensors()) {
    const std::string name = stacks ? renamed(stored) : stored;
    const auto expert = stacks ? expert_of(name) : std::nullopt;
    if (!expert) {
      add(name, {tensor.entry->dtype, tensor.entry->sizes, {tensor}});
      continue;
    }
    Experts& all = experts[expert->weight];
    all.parts = expert->parts;
    TORCH_CHECK_VALUE(
        all.tensors.emplace(std::pair(expert->number, expert->part), tensor)
            .second,
        tensor.file->path(), ": ", in_quotes(stored), " is there twice");
  }
  for (const auto& [name, each] : experts) {
    add(name, stacked(name, each.tensors, each.parts));
  }
  return weights;
}

bool same_bytes(const FolderWeight& a, const FolderWeight& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes &&
         std::equal(
             a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(),
             [](const Tensor& x, const Tensor& y) { return same_bytes(x, y); });
}

}  // namespace gpipe::internal
