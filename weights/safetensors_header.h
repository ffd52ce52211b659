// The JSON header of safetensors files.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

// Of the header, in bytes, by the format.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  uint64_t begin = 0;  // in the data
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of the JSON
  std::map<std::string, std::string> metadata;
};

// Reads the JSON and checks that the entries cover the `data_bytes` bytes after
// it, each byte once, and that each has the size that its shape needs. Takes
// memory of a small multiple of the JSON's size.
//
// Errors: c10::ValueError; see read_safetensors(). Threads: pure function.
SafetensorsHeader parse_safetensors_header(std::string_view json,
                                           uint64_t data_bytes);

// The JSON, with spaces after it to a multiple of 8 bytes. c10::ValueError for
// texts that are not UTF-8 and for more than 100 MB. Threads: pure function.
std::string safetensors_header_text(const SafetensorsHeader& header);

}  // namespace gpipe
