// Texts as values of a c10d store.
#pragma once

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace gpipe::internal {

inline std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

inline std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

// Returns the text at `key`, or "" if there is no such key. Does not wait for
// it. Throws what the store throws.
inline std::string text_at(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? text_of(store.get(key)) : "";
}

}  // namespace gpipe::internal
