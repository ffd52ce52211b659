#include "gpipe/distributed/channel/message.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <ios>
#include <sstream>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::internal {

std::string MessageId::to_string() const {
  const bool forward = direction == Direction::kForward;
  std::ostringstream text;
  if (skip >= 0) {
    text << (forward ? "" : "the gradient of ") << "skip tensor " << skip;
  } else if (forward) {
    text << "the output of stage " << from_stage;
  } else {
    text << "the gradient of stage " << to_stage << "'s output";
  }
  text << " for micro-batch " << microbatch << " of step " << step << ",";
  if (skip >= 0 || !forward) text << " from stage " << from_stage;
  if (skip >= 0 || forward) text << " to stage " << to_stage;
  return text.str();
}

void check_message(const Message& message) {
  const auto count = message.tensors.size();
  TORCH_CHECK(count <= kMaxMessageTensors, "a message has ", count,
              " tensors; at most ", kMaxMessageTensors,
              " can be sent in one: put some of them together");
  TORCH_CHECK(0 <= message.rows && message.rows <= message.total_rows,
              "a message says that its micro-batch has ", message.rows, " of ",
              message.total_rows, " rows, which is impossible");
  constexpr auto kLast = static_cast<int>(Value::Kind::kTuple);
  TORCH_CHECK(message.value_kind <= kLast, "a message holds a value of kind ",
              static_cast<int>(message.value_kind), "; kinds end at ", kLast);
  const auto kind = static_cast<Value::Kind>(message.value_kind);
  TORCH_CHECK(
      message.skips <= count && (message.id.skip < 0 || message.skips == count),
      "a message says that ", message.skips, " of its ", count,
      " tensors are skip tensors, which is impossible");
  if (message.id.direction == Direction::kForward && message.id.skip < 0) {
    const auto rest = count - message.skips;
    TORCH_CHECK(kind != Value::Kind::kTensor || rest == 1,
                "a message holds one tensor by its kind, but specs of ", rest);
    TORCH_CHECK(
        kind != Value::Kind::kTuple || (1 <= rest && rest <= kMaxTupleSize),
        "a message holds a tuple by its kind, of 1 to ", kMaxTupleSize,
        " tensors, but specs of ", rest);
  }
  for (std::size_t k = 0; k < count; ++k) check_spec(message.tensors[k], k);
}

void check_expected(const MessageId& got, const MessageId& expected) {
  TORCH_CHECK(got.step == expected.step, "received a message of step ",
              got.step, " (", got.to_string(), "), but this rank is in step ",
              expected.step, " and expected ", expected.to_string(),
              "; all ranks must make the same calls in the same order");
  TORCH_CHECK(got.schedule == expected.schedule,
              "the ranks run different schedules: received ", got.to_string(),
              " of a schedule with the checksum 0x", std::hex, got.schedule,
              ", but this rank's has 0x", expected.schedule,
              "; give all ranks the same schedule");
  TORCH_CHECK(got == expected, "received ", got.to_string(), ", but expected ",
              expected.to_string(),
              "; all ranks must run the same actions in the same order");
}

}  // namespace gpipe::internal
