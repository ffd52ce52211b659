// The messages between ranks: which message it is, and what it holds.
//
// Thread-safe: all functions are pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/distributed/channel/tensor_spec.h"

namespace gpipe::internal {

// The largest number of tensors in a message.
constexpr int64_t kMaxMessageTensors = 65536;

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
  // shape_prediction.h). If it is false although the receiver predicted some,
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

}  // namespace gpipe::internal
