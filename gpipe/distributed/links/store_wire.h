// Requests to a store of keys and values, and its answers. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpipe::internal {

struct StoreRequest {
  enum class Kind : uint8_t {
    kSet = 1,
    kGet,
    kAdd,
    kCompareSet,
    kDelete,
    kCount,
  };
  Kind kind = Kind::kGet;
  std::string key;
  std::string value;    // kSet: the new value; kCompareSet: the expected one
  std::string desired;  // kCompareSet
  int64_t number = 0;   // kAdd

  bool operator==(const StoreRequest&) const = default;
};

struct StoreReply {
  bool found = false;  // kGet, kDelete: whether the key was there
  std::string value;   // kGet, kCompareSet: the value now
  int64_t number = 0;  // kAdd: the sum; kCount: the number of keys

  bool operator==(const StoreReply&) const = default;
};

// The largest message. A longer one is an error of its sender.
constexpr std::size_t kMostStoreBytes = 1 << 20;

// encode() returns the bytes of a message; decode_x() is the reverse, or
// nullopt if the bytes are no such message.
std::string encode(const StoreRequest& request);
std::string encode(const StoreReply& reply);
std::optional<StoreRequest> decode_request(std::string_view bytes);
std::optional<StoreReply> decode_reply(std::string_view bytes);

// Messages in a stream: their length (uint32), then their bytes.
std::string framed(const std::string& message);
// Removes the first message of `stream` and returns it; nullopt if it is not
// complete. Throws std::length_error if it is longer than kMostStoreBytes.
std::optional<std::string> take_message(std::string& stream);

}  // namespace gpipe::internal
