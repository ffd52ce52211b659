// The wire format: the header before the tensors of a message.
//
// send and recv of c10d transfer bytes without a description. If a message has
// another length than the receiver expects, the connection breaks. If it has
// another dtype, the bytes are misread. So a message has three parts:
//
// 1. A header of kHeaderBytes bytes, a length that both sides know.
//
// 2. An overflow, if the specs of the tensors do not fit into the header. The
// header contains its length.
//
// 3. The bytes of each tensor. Their number follows from its spec.
//
// Received bytes are not trusted. Whatever they are, decoding them returns a
// consistent message or throws c10::Error. It reads nothing outside of the
// bytes and allocates at most a small multiple of their number.
//
// Thread-safe: all functions are pure.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/distributed/channel/message.h"

namespace gpipe::internal {

// The size of a header, and the largest size of an overflow.
constexpr int64_t kHeaderBytes = 1024;
constexpr int64_t kMaxOverflowBytes = int64_t{1} << 20;

// Returns the size of the overflow: the bytes of `specs` that do not fit into a
// header.
int64_t overflow_of(const std::vector<TensorSpec>& specs);

// Returns the header, followed by the overflow. Throws c10::Error if decode()
// would refuse the message: too many tensors, or impossible specs.
std::vector<uint8_t> encode(const Message& message);

// Returns the size of the overflow that follows `header`, which has
// kHeaderBytes bytes: 0 to kMaxOverflowBytes. Throws c10::Error if `header` is
// no header, is damaged, or comes from another version of gpipe.
int64_t overflow_bytes(const uint8_t* header);

// Returns Message::as_predicted of a header of kHeaderBytes bytes.
bool is_as_predicted(const uint8_t* header);

// Returns the message in `data`: a header and its overflow, `size` bytes
// together. The reverse of encode(). Throws c10::Error if the bytes are not a
// message, are damaged or cut off, or contradict themselves.
Message decode(const uint8_t* data, int64_t size);

}  // namespace gpipe::internal
