// The tensors of a folder under the names that an exported program has.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "models/weights/safetensors_folder.h"

namespace gpipe::internal {

// A weight whose bytes are those of one or several tensors, one after the
// other.
struct FolderWeight {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<SafetensorsFolder::Tensor> pieces;

  // Returns the path of the file with the first piece.
  const std::string& path() const { return pieces.front().file->path(); }
  // Reads all bytes. Throws c10::ValueError if a file cannot be read.
  void read(void* to) const;
};

// Returns the tensors of a folder by name.
//
// Mixtures of experts: folders have a tensor for each expert, and programs of
// transformers 5 have those of a layer in one. If `program`, the names of the
// program's weights, has such names, this returns
// - "x.experts.gate_up_proj" [experts, 2 * inner, width] of the tensors
//   "x.experts.K.gate_proj.weight" and "x.experts.K.up_proj.weight"
//   [inner, width] for each K,
// - "x.experts.down_proj" [experts, width, inner] of
//   "x.experts.K.down_proj.weight",
// where Mixtral's names w1, w3, w2 and "block_sparse_moe" stand for gate_proj,
// up_proj, down_proj and "mlp".
//
// Throws c10::ValueError with the file and the name if an expert is missing or
// has another shape or dtype than the first one. Thread-safe.
std::map<std::string, FolderWeight> folder_weights(
    const SafetensorsFolder& folder,
    const std::unordered_set<std::string>& program);

// Returns whether both have the same dtype, shape and bytes. Throws
// c10::ValueError if a file cannot be read. Thread-safe.
bool same_bytes(const FolderWeight& a, const FolderWeight& b);

}  // namespace gpipe::internal
