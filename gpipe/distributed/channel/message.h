// Messages between ranks: which message it is, the descriptions of its tensors,
// and the header in which both are sent.
//
// Thread-safe: all functions are pure.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::internal {

// The largest number of dimensions of a tensor that can be sent.
constexpr int64_t kMaxMessageDims = 64;

// The largest TensorSpec::unsplit. Tensors with larger numbers are sent each
// time.
constexpr int kMaxUnsplit = 253;

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
  // The number of a tensor that all micro-batches share; -1 for others. See
  // Activation.
  int unsplit = -1;
  // Whether the tensor has gone to this receiver before in this step. Then its
  // bytes are not sent again.
  bool repeated = false;

  // Returns the number of bytes that are sent: 0 if `repeated`, else bytes().
  int64_t sent_bytes() const { return repeated ? 0 : bytes(); }
  // Returns the number of bytes: the product of the sizes times the element
  // size; 0 if undefined. Throws c10::Error if a size is negative, or if the
  // product does not fit into an int64_t.
  int64_t bytes() const;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Throws c10::Error if a tensor with `spec`, which may hold any numbers, cannot
// be sent.
// `k`: the tensor's index in its message, for the error text.
void check_spec(const TensorSpec& spec, std::size_t k);

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
// spec is. Receive into its bytes_of(). `pinned`: whether to use host memory
// that accelerators can access.
at::Tensor empty_like_spec(const TensorSpec& spec,
                           c10::Device device = c10::kCPU, bool pinned = false);

// The largest number of tensors in a message.
constexpr int64_t kMaxMessageTensors = 65536;

enum class Direction : uint8_t { kForward, kBackward };

// The identity of a message within a step. A forward message carries an output
// of stage a to a later stage b; the backward message from b to a carries its
// gradient. One message has all outputs of an action for one rank (see
// route()); it has the identity of its last part.
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

  friend auto operator<=>(const MessageId&, const MessageId&) = default;
};

// A message: its identity and the specs of its tensors, without their bytes.
struct Message {
  MessageId id;
  // How many of the tensors are skip tensors, or gradients of these; each is a
  // part of the message. They come first; the tensors of the boundary follow.
  // Equal to the number of tensors if `id` names a skip tensor.
  uint32_t skips = 0;
  // A Value::Kind. Used for the boundary of a forward message only, where it
  // must match the number of tensors. Other messages are plain lists.
  uint8_t value_kind = 0;
  // True if the tensors are as the receiver predicted them (see
  // ShapePrediction). If it is false although the receiver predicted some,
  // zeros of the predicted sizes come before the overflow and the tensors,
  // because their receives are posted already.
  bool as_predicted = false;
  int64_t rows = 0;        // of the micro-batch, >= 0
  int64_t total_rows = 0;  // of the mini-batch, >= `rows`
  uint64_t seed = 0;       // of the step's random numbers
  std::vector<TensorSpec> tensors;
};

// Throws c10::Error for a message that cannot be sent: it has too many tensors,
// a tensor that cannot be sent, or fields that contradict each other.
void check_message(const Message& message);

// Throws c10::Error if the two differ; it says what differs: the step, the
// schedule, or the message.
void check_expected(const MessageId& got, const MessageId& expected);

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
