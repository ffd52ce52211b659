// The parts of a safetensors file: its JSON header, the positions of its
// tensors, and an open file whose tensors are read one by one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/weights/files.h"
#include "models/weights/state_dict.h"

namespace gpipe::internal {

// ---- The header

// One tensor of the header.
struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;  // in elements of LibTorch
  uint64_t begin = 0;          // byte offsets in the data, after the header
  uint64_t end = 0;

  bool operator==(const SafetensorsEntry&) const = default;
};

// The contents of the header.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of the JSON
  std::map<std::string, std::string> metadata;
};

// Parses the JSON of a header. Checks that the entries cover each of the
// `data_bytes` bytes after the header exactly once, and that the size of each
// entry matches its shape. Uses memory of a small multiple of the JSON's size.
//
// Throws c10::ValueError, see read_safetensors(). Thread-safe.
SafetensorsHeader parse_safetensors_header(std::string_view json,
                                           uint64_t data_bytes);

// Returns the JSON, padded with spaces to a multiple of 8 bytes. Throws
// c10::ValueError if a text is not UTF-8, if a dtype is not in the format, or
// if the JSON has more than 100 MB. Thread-safe.
std::string safetensors_header_text(const SafetensorsHeader& header);

// ---- Writing

// The number of bytes before the header, which hold its length, little-endian.
constexpr std::size_t kSafetensorsLengthBytes = 8;

// The header of a file, and the order of its data.
struct SafetensorsLayout {
  SafetensorsHeader header;        // entries in the order of the dict
  std::string start;               // the length and the JSON header, as bytes
  std::vector<std::size_t> order;  // order of the data: indices into the dict
};

// Returns the layout of a file with `tensors`. Tensors with larger elements
// come first, so that each tensor is aligned to its elements. Tensors with the
// same element size keep the order of the dict.
//
// Throws c10::ValueError, see write_safetensors(). Thread-safe.
SafetensorsLayout lay_out(
    const StateDict& tensors,
    const std::map<std::string, std::string>& metadata = {});

// Writes a whole file, but does not commit it. Copies to the CPU, if needed,
// are made one at a time. Throws c10::Error if the file cannot be written.
void write_laid_out(AtomicFile& file, const StateDict& tensors,
                    const SafetensorsLayout& layout);

// Returns the values as they are written: contiguous and on the CPU. Copies
// only if necessary. Thread-safe.
at::Tensor as_written(const at::Tensor& tensor);

// ---- Reading

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
