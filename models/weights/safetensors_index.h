// The index of a model whose safetensors are in several files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe::internal {

// The largest index in bytes that is read.
constexpr uint64_t kMaxSafetensorsIndex = 100'000'000;

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

}  // namespace gpipe::internal
