// Folders of safetensors files, as transformers writes them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/weights/safetensors_file.h"

namespace gpipe::internal {

constexpr char kSafetensorsName[] = "model.safetensors";
constexpr char kSafetensorsIndexName[] = "model.safetensors.index.json";

// The tensors of all files of a folder: of model.safetensors, or else of the
// files that model.safetensors.index.json names. The headers of all files are
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

// Returns whether both tensors have the same dtype, shape and bytes. Reads them
// piece by piece. Throws c10::ValueError if a file cannot be read.
bool same_bytes(const SafetensorsFolder::Tensor& a,
                const SafetensorsFolder::Tensor& b);

}  // namespace gpipe::internal
