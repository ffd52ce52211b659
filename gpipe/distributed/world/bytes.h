// Numbers, texts and failures as bytes, in the byte order of the host. All
// ranks must have the same byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

#include "gpipe/distributed/error.h"

namespace gpipe::internal {

// Appends the bytes of `value`.
template <typename Number>
void put(std::string& bytes, Number value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Returns the number at `at` and moves `at` behind it. Returns zero if the
// bytes end within the number.
template <typename Number>
Number take(const std::string& bytes, std::size_t& at) {
  Number value{};
  if (at + sizeof value <= bytes.size()) {
    bytes.copy(reinterpret_cast<char*>(&value), sizeof value, at);
  }
  at += sizeof value;
  return value;
}

// Appends the length of `text` (uint64), then `text`.
inline void put(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<uint64_t>(text.size()));
  bytes += text;
}

// Returns the text at `at` and moves `at` behind it. If the bytes end within
// the text, returns the part that is there.
inline std::string take_text(const std::string& bytes, std::size_t& at) {
  const auto size = take<uint64_t>(bytes, at);
  if (at > bytes.size()) return "";
  std::string text = bytes.substr(at, size);
  at += text.size();
  return text;
}

// Returns the bytes of `values`, which are numbers, flags and texts, one after
// the other.
template <typename... Values>
std::string pack(const Values&... values) {
  std::string bytes;
  (put(bytes, values), ...);
  return bytes;
}

// Does the reverse of pack(): sets `values` to those at `at`, and moves `at`
// behind them.
template <typename... Values>
void unpack(const std::string& bytes, std::size_t& at, Values&... values) {
  const auto set = [&]<typename Value>(Value& value) {
    if constexpr (std::is_same_v<Value, std::string>) {
      value = take_text(bytes, at);
    } else if constexpr (std::is_same_v<Value, bool>) {
      value = take<uint8_t>(bytes, at) != 0;
    } else {
      value = take<Value>(bytes, at);
    }
  };
  (set(values), ...);
}

// Returns the texts of which `bytes` consists.
inline std::vector<std::string> take_texts(const std::string& bytes) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < bytes.size();) {
    texts.push_back(take_text(bytes, at));
  }
  return texts;
}

// Returns the first line of the text of an exception of LibTorch, without a
// backtrace and without the source location that some texts begin with.
std::string reason_of(const std::exception& error);

// Returns the whole text of an exception without a backtrace, for other ranks.
std::string cause_of(const std::exception_ptr& exception);

// encode_failure() returns a failure as at most kFailureBytes bytes; texts
// above 1500 bytes are cut. decode_failure() is the reverse. It returns some
// failure for any `bytes` and never throws.
constexpr std::size_t kFailureBytes = 3072;
std::string encode_failure(const RankFailure& failure);
RankFailure decode_failure(const std::string& bytes);

// Throws `failure` as a PeerError.
// `rank`: the rank of this process.
[[noreturn]] void throw_peer_error(const RankFailure& failure, int rank);

}  // namespace gpipe::internal
