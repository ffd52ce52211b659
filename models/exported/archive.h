// The archive that Python's torch.export.save writes.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace gpipe::exported {

// The records of a .pt2 file: the program as JSON, and one record for each
// weight. Nothing is unpickled. Records are read when they are asked for. All
// functions throw c10::ValueError, without the path, if the file is not such an
// archive, is damaged, or lacks a record. Not thread-safe.
class Archive {
 public:
  explicit Archive(const std::string& path);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  bool has(const std::string& record);
  // Returns the size of a record in bytes, without reading it.
  std::size_t size(const std::string& record);
  // Returns the content of a record.
  std::string text(const std::string& record);
  c10::Storage storage(const std::string& record);

  // Returns the name of the exported program, "model" unless it was packaged
  // under another one. Its record is "models/NAME.json".
  const std::string& model() const { return model_; }

  // Returns the CRC-32C of the names, sizes and CRC-32s of the records with
  // weights and constants, which the directory has.
  uint32_t weights_checksum() const { return weights_checksum_; }

 private:
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  uint32_t weights_checksum_;
  std::string model_;
};

}  // namespace gpipe::exported
