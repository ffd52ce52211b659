// Numbers and texts as bytes, one after the other, for machines of one kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpipe {

template <typename Number>
void put(std::string& bytes, Number value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The number at `at`, which moves on behind it. Zero if it is cut off.
template <typename Number>
Number take(const std::string& bytes, std::size_t& at) {
  Number value{};
  if (at + sizeof value <= bytes.size()) {
    bytes.copy(reinterpret_cast<char*>(&value), sizeof value, at);
  }
  at += sizeof value;
  return value;
}

inline void put_text(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<uint64_t>(text.size()));
  bytes += text;
}

// As much of it as there is.
inline std::string take_text(const std::string& bytes, std::size_t& at) {
  const auto size = take<uint64_t>(bytes, at);
  if (at > bytes.size()) return "";
  std::string text = bytes.substr(at, size);
  at += text.size();
  return text;
}

}  // namespace gpipe
