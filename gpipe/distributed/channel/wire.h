// The header before the tensors of a message: which message it is, and what
// each tensor is.
//
// send and recv of c10d transfer bytes without a description. If a message has
// another length than the receiver expects, the receiver's process ends (Gloo).
// If it has another dtype, the bytes are misread. So a message has three parts:
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

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::internal {

// The size of a header, and the limits of a message.
constexpr int64_t kHeaderBytes = 1024;
constexpr int64_t kMaxOverflowBytes = int64_t{1} << 20;
constexpr int64_t kMaxMessageTensors = 65536;
constexpr int64_t kMaxMessageDims = 64;

enum class Direction : uint8_t { kForward, kBackward };

// The identity of a message within a step. A forward message carries an output
// of stage a to a later stage b; the backward message from b to a carries its
// gradient. One message has all outputs of an action for one rank (see
// route.h); it has the identity of its last part.
struct MessageId {
  uint64_t step = 0;
  uint32_t schedule = 0;  // CRC-32C of the schedule's text
  Direction direction = Direction::kForward;
  int32_t from_stage = 0;
  int32_t to_stage = 0;
  int32_t skip = -1;  // index of the skip link; -1: boundary
  int32_t microbatch = 0;

  // Returns a text such as "the output of stage 1 for micro-batch 3 of step 7,
  // to stage 2" or "the gradient of skip tensor 0 for micro-batch 3 of step 7,
  // from stage 2 to stage 0".
  std::string to_string() const;

  friend bool operator==(const MessageId& a, const MessageId& b) {
    return a.step == b.step && a.schedule == b.schedule &&
           a.direction == b.direction && a.from_stage == b.from_stage &&
           a.to_stage == b.to_stage && a.skip == b.skip &&
           a.microbatch == b.microbatch;
  }
};

// The description of a tensor as it is sent. `sizes` and `strides` (in
// elements) have one entry for each dimension. An undefined tensor has none and
// no bytes.
struct TensorSpec {
  bool defined = false;
  bool requires_grad = false;
  at::ScalarType type = at::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool shared = false;  // see Activation

  // Returns the number of bytes: the product of the sizes times the element
  // size; 0 if undefined. Throws c10::Error if a size is negative, or if the
  // product does not fit into an int64_t.
  int64_t bytes() const;

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.defined == b.defined && a.requires_grad == b.requires_grad &&
           a.type == b.type && a.sizes == b.sizes && a.strides == b.strides &&
           a.shared == b.shared;
  }
};

// The contents of a header.
struct Message {
  MessageId id;
  // How many of the tensors are skip tensors, or gradients of these; each is a
  // part of the message. They come first; the tensors of the boundary follow.
  // Equal to the number of tensors if `id` names a skip tensor.
  uint32_t skips = 0;
  // A Value::Kind. Used for the boundary of a forward message only, where it
  // must match the number of tensors. Other messages are plain lists.
  uint8_t value_kind = 0;
  // True if the tensors are as the receiver predicted them (see forecast.h). If
  // it is false although the receiver predicted some, zeros of the predicted
  // sizes come before the overflow and the tensors, because their receives are
  // posted already.
  bool as_predicted = false;
  int64_t rows = 0;        // of the micro-batch, >= 0
  int64_t total_rows = 0;  // of the mini-batch, >= `rows`
  uint64_t seed = 0;       // of the step's random numbers
  std::vector<TensorSpec> tensors;
};

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

// Throws c10::Error if the two differ; it says what differs: the step, the
// schedule, or the message.
void check_expected(const MessageId& got, const MessageId& expected);

// Returns how `tensor`, on any device, is sent. If it is dense and does not
// overlap, its memory is sent as it is, with its strides (channels_last stays
// channels_last); else its elements are sent contiguously. Throws c10::Error
// for a tensor that is sparse, quantized or nested, because its bytes are not
// its elements.
TensorSpec spec_of(const at::Tensor& tensor, bool requires_grad);

// Returns the bytes that spec_of() describes: a uint8 tensor of one dimension
// and spec.bytes() elements, on the same device; empty for an undefined tensor.
// It shares the memory of `tensor` and keeps it alive. It is a copy if the
// memory is not dense, or does not hold the values (a lazy conjugate). Throws
// c10::Error as spec_of() does.
at::Tensor bytes_of(const at::Tensor& tensor);

// Returns a new uninitialized tensor without requires_grad; undefined if the
// spec is. Receive into its bytes_of().
at::Tensor empty_like_spec(const TensorSpec& spec,
                           c10::Device device = c10::kCPU);

}  // namespace gpipe::internal
