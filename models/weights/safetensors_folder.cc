#include "models/weights/safetensors_folder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>

#include "models/weights/file_reader.h"
#include "models/weights/in_quotes.h"
#include "models/weights/safetensors_index.h"

namespace gpipe::internal {
namespace {

SafetensorsIndex read_index(const std::string& path) {
  std::string text;
  try {
    const FileReader file(path);
    TORCH_CHECK_VALUE(file.size() <= kMaxSafetensorsIndex, path, ": has ",
                      file.size(), " bytes, and ", kMaxSafetensorsIndex,
                      " are the most that are read");
    text.resize(file.size());
    file.read_at(0, text.data(), text.size());
  } catch (const c10::ValueError&) {
    throw;
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, error.what_without_backtrace());
  }
  try {
    return parse_safetensors_index(text);
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, path, ": ", error.what_without_backtrace());
  }
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& folder) {
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

bool same_bytes(const SafetensorsFolder::Tensor& a,
                const SafetensorsFolder::Tensor& b) {
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

}  // namespace gpipe::internal
