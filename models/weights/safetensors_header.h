// Parses and writes the JSON header of safetensors files.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::internal {

// The largest header in bytes that the format allows.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// One tensor of the header.
struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;  // in elements of LibTorch
  uint64_t begin = 0;          // byte offsets in the data, after the header
  uint64_t end = 0;
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

}  // namespace gpipe::internal
