// Tags of c10d messages.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace gpipe::internal {

// The tags of one pipeline, different from all others in the world.
struct Tags {
  // `channel`: see Communicator::next_channel().
  explicit Tags(int channel)
      : header(4 * channel),
        payload(header + 1),
        words(header + 2),
        sums(header + 3) {}
  int header, payload;  // of messages: header and tensors
  int words;            // of texts at the beginning and the end of a step
  int sums;             // of sums of gradients over replicas, during a step

  // Returns the tag of a payload of `bytes` bytes with dtype `type`. A message
  // of another length than the receiver expects breaks the connection, and one
  // of another dtype would be misread. So the tag depends on length and dtype,
  // and a payload that was announced differently never arrives.
  int payload_of(int64_t bytes, at::ScalarType type) const;
};

}  // namespace gpipe::internal
