#include "models/weights/folder_weights.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "models/weights/in_quotes.h"

namespace gpipe::internal {
namespace {

using Tensor = SafetensorsFolder::Tensor;

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
  const bool stacks =
      std::any_of(program.begin(), program.end(),
                  [](const auto& name) { return name.ends_with(kGateUp); });
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
