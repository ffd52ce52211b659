#include "gpipe/distributed/links/store_wire.h"

#include <cstring>
#include <stdexcept>

namespace gpipe::internal {
namespace {

template <typename Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put_text(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<uint32_t>(text.size()));
  bytes += text;
}

// Takes fields from the front of `bytes`; they return false if it is too short.
template <typename Number>
bool take(std::string_view& bytes, Number& number) {
  if (bytes.size() < sizeof number) return false;
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return true;
}

bool take_text(std::string_view& bytes, std::string& text) {
  uint32_t size = 0;
  if (!take(bytes, size) || size > bytes.size()) return false;
  text = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return true;
}

}  // namespace

std::string encode(const StoreRequest& request) {
  std::string bytes;
  put(bytes, request.kind);
  put(bytes, request.number);
  put_text(bytes, request.key);
  put_text(bytes, request.value);
  put_text(bytes, request.desired);
  return bytes;
}

std::string encode(const StoreReply& reply) {
  std::string bytes;
  put(bytes, static_cast<uint8_t>(reply.found));
  put(bytes, reply.number);
  put_text(bytes, reply.value);
  return bytes;
}

std::optional<StoreRequest> decode_request(std::string_view bytes) {
  StoreRequest request;
  if (!take(bytes, request.kind) || !take(bytes, request.number) ||
      !take_text(bytes, request.key) || !take_text(bytes, request.value) ||
      !take_text(bytes, request.desired) || !bytes.empty() ||
      request.kind < StoreRequest::Kind::kSet ||
      request.kind > StoreRequest::Kind::kCount) {
    return {};
  }
  return request;
}

std::optional<StoreReply> decode_reply(std::string_view bytes) {
  StoreReply reply;
  uint8_t found = 0;
  if (!take(bytes, found) || found > 1 || !take(bytes, reply.number) ||
      !take_text(bytes, reply.value) || !bytes.empty()) {
    return {};
  }
  reply.found = found == 1;
  return reply;
}

std::string framed(const std::string& message) {
  std::string bytes;
  put_text(bytes, message);
  return bytes;
}

std::optional<std::string> take_message(std::string& stream) {
  std::string_view rest = stream;
  uint32_t size = 0;
  if (!take(rest, size)) return {};
  if (size > kMostStoreBytes) {
    throw std::length_error("a message of " + std::to_string(size) +
                            " bytes, but the most is " +
                            std::to_string(kMostStoreBytes));
  }
  if (rest.size() < size) return {};
  std::string message(rest.substr(0, size));
  stream.erase(0, sizeof size + size);
  return message;
}

}  // namespace gpipe::internal
