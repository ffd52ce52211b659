// Reads single tensors of a safetensors file.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "models/weights/file_reader.h"
#include "models/weights/safetensors_header.h"

namespace gpipe::internal {

// A function that copies bytes from `offset` in the file. The caller checks
// that the bytes exist.
using ReadAt = std::function<void(uint64_t offset, void* to, std::size_t size)>;

// The beginning of a file.
struct SafetensorsStart {
  SafetensorsHeader header;
  uint64_t data_begin = 0;  // in bytes, where the data of the tensors begins
};

// Reads and checks the header of a file of `file_bytes` bytes. Throws
// c10::ValueError, see read_safetensors(). Thread-safe.
SafetensorsStart read_safetensors_start(uint64_t file_bytes,
                                        const ReadAt& read_at);

// An open file, whose header has been read and checked. Thread-safe.
class SafetensorsFile {
 public:
  // Throws c10::ValueError with the path, see read_safetensors().
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return reader_.path(); }
  uint64_t size() const { return reader_.size(); }  // in bytes
  const SafetensorsHeader& header() const { return start_.header; }

  // Reads `size` bytes of a tensor of this file, from byte `offset` of the
  // tensor on. Throws c10::ValueError with the path and the tensor's name if
  // they cannot be read.
  void read(const SafetensorsEntry& entry, uint64_t offset, void* to,
            std::size_t size) const;

 private:
  const FileReader reader_;
  const SafetensorsStart start_;
};

}  // namespace gpipe::internal
