// The header that goes before tensors from rank to rank: which message it is,
// and what each tensor after it is.
//
// c10d's send and recv carry bytes without a word about them: a message of
// another length than the receiver waits for ends its process, and one of
// another dtype is read as if it had the expected one. So a header of
// kHeaderBytes, which both sides know, is sent first; if the tensors' specs
// need more, an overflow follows, whose length stands in the header; then come
// the bytes of each tensor, whose number follows from its spec.
//
// What is received is never trusted: whatever the bytes, decoding them gives a
// consistent message or a c10::Error, reads nothing outside of them, and
// allocates no more than a small multiple of their number.
//
// Threads: pure functions, all of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe {

constexpr int64_t kHeaderBytes = 1024;
constexpr int64_t kMaxOverflowBytes = int64_t{1} << 20;
constexpr int64_t kMaxMessageTensors = 65536;
constexpr int64_t kMaxMessageDims = 64;

enum class Direction : uint8_t { kForward, kBackward };

// Which of a step's messages it is. A forward one goes from stage a to a later
// stage b with what a made; the backward one from b to a returns the gradient.
// One message has all that an action makes for stages of a rank (see route.h),
// and the name of the last part.
struct MessageId {
  uint64_t step = 0;
  uint32_t schedule = 0;  // crc32c of its text
  Direction direction = Direction::kForward;
  int32_t from_stage = 0;
  int32_t to_stage = 0;
  int32_t skip = -1;  // number among all skip links; -1: the boundary
  int32_t microbatch = 0;

  // "the output of stage 1 for micro-batch 3 of step 7, to stage 2", "the
  // gradient of skip tensor 0 for micro-batch 3 of step 7, from stage 2 to
  // stage 0".
  std::string to_string() const;

  friend bool operator==(const MessageId& a, const MessageId& b) {
    return a.step == b.step && a.schedule == b.schedule &&
           a.direction == b.direction && a.from_stage == b.from_stage &&
           a.to_stage == b.to_stage && a.skip == b.skip &&
           a.microbatch == b.microbatch;
  }
};

// A tensor as its bytes are sent. `sizes` and `strides` have one entry for each
// dimension, in elements. An undefined tensor has neither, and no bytes.
struct TensorSpec {
  bool defined = false;
  bool requires_grad = false;
  at::ScalarType type = at::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool shared = false;  // see Crossing

  // The product of the sizes times the bytes of an element. c10::Error if a
  // size is negative, or the product is more than an int64_t holds.
  int64_t bytes() const;

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.defined == b.defined && a.requires_grad == b.requires_grad &&
           a.type == b.type && a.sizes == b.sizes && a.strides == b.strides &&
           a.shared == b.shared;
  }
};

struct Message {
  MessageId id;
  // How many of the tensors are skip tensors or their gradients, a part each.
  // The others, after them, are the boundary; all, if the name is a skip's.
  uint32_t skips = 0;
  // A Value::Kind. Says something of a forward boundary only, whose number of
  // tensors it must agree with; other messages are plain lists.
  uint8_t value_kind = 0;
  // What follows the header is what the receiver foresees (see forecast.h).
  // Else it follows bytes in the place of that, if something was foreseen.
  bool as_foreseen = false;
  int64_t rows = 0;        // of the micro-batch, at least 0
  int64_t total_rows = 0;  // of the mini-batch, at least `rows`
  uint64_t seed = 0;       // of the step's random numbers
  std::vector<TensorSpec> tensors;
};

// How many bytes of specs a header has no room for: the size of the overflow.
int64_t overflow_of(const std::vector<TensorSpec>& specs);

// The header and, from kHeaderBytes on, the overflow. c10::Error if decode()
// would refuse it: too many tensors, or specs that cannot be.
std::vector<uint8_t> encode(const Message& message);

// How many bytes follow a header of kHeaderBytes: 0, or up to
// kMaxOverflowBytes. c10::Error if it is not a header, or of another version of
// gpipe's, or damaged.
int64_t overflow_bytes(const uint8_t* header);

// Message::as_foreseen of such a header.
bool is_as_foreseen(const uint8_t* header);

// The reverse of encode(), from the header and its overflow in one piece.
// c10::Error if they are not a message, damaged, cut off, or contradict
// themselves.
Message decode(const uint8_t* data, int64_t size);

// Returns if they are equal. c10::Error that says what differs: the step, the
// schedule, or which message it is.
void check_expected(const MessageId& got, const MessageId& expected);

// How `tensor`, on any device, is sent: as its memory lies, with its strides,
// if it is dense and does not overlap (so channels_last stays channels_last),
// and contiguous otherwise. c10::Error for a tensor whose bytes are not its
// elements: sparse, quantized, nested.
TensorSpec spec_of(const at::Tensor& tensor, bool requires_grad);

// The bytes that spec_of() speaks of, a 1-dimensional uint8 tensor of
// spec.bytes() elements: the memory of `tensor` itself, which it keeps alive,
// or a copy where that is not dense or is not what the elements say (the
// conjugate of a complex tensor). On the same device. Of an undefined tensor:
// none. c10::Error as spec_of().
at::Tensor bytes_of(const at::Tensor& tensor);

// A new tensor, not initialized, without requires_grad; undefined for the spec
// of an undefined one. Its bytes_of() is what to receive into.
at::Tensor empty_like_spec(const TensorSpec& spec,
                           c10::Device device = c10::kCPU);

}  // namespace gpipe
