// Folders of safetensors files, as transformers writes them: their index, their
// tensors, and these tensors under the names that an exported program has.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "models/weights/safetensors_file.h"

namespace gpipe::internal {

// ---- The index of a model whose safetensors are in several files

// Names of tensors, and the file of each, which is in the folder of the index.
using SafetensorsIndex = std::vector<std::pair<std::string, std::string>>;

// Parses the JSON of model.safetensors.index.json, in its order. Only
// "weight_map" is read. Uses memory of a small multiple of the JSON's size.
//
// Throws c10::ValueError if the JSON has no such map of texts, if it names a
// tensor twice, or if the name of a file leads out of the folder. Thread-safe.
SafetensorsIndex parse_safetensors_index(std::string_view json);

// Returns the JSON in the form that transformers writes, with sorted names.
// `bytes` and `elements`: of all tensors. Throws c10::ValueError if a name is
// not UTF-8. Thread-safe.
std::string safetensors_index_text(const SafetensorsIndex& index,
                                   uint64_t bytes, uint64_t elements);

// ---- The folder

constexpr char kSafetensorsName[] = "model.safetensors";
constexpr char kSafetensorsIndexName[] = "model.safetensors.index.json";

// Throws c10::ValueError if `folder` is an empty text: "/" + a name would be a
// file in the root folder.
void check_folder_name(const std::string& folder);

// The tensors of all files of a folder: of model.safetensors, or else of the
// files that model.safetensors.index.json names. A path of a file stands for a
// folder with this file only. The headers of all files are
// read and checked at once, tensors only when they are asked for. Thread-safe.
class SafetensorsFolder {
 public:
  struct Tensor {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;

    uint64_t bytes() const { return entry->end - entry->begin; }
    void read(void* to) const { file->read(*entry, 0, to, bytes()); }
  };

  // Throws c10::ValueError that names the file and the tensor if
  // - there is neither of the two files, or one cannot be read or is not valid
  //   (see read_safetensors() and parse_safetensors_index()),
  // - the index names a file that is missing, or a tensor that its file lacks,
  // - a file has a tensor that the index does not name or that another file
  //   has.
  explicit SafetensorsFolder(const std::string& folder);

  // By name.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  void open(const std::string& path);
  void open_shards(const std::string& folder);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor> tensors_;
};

// ---- Weights of a program

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
