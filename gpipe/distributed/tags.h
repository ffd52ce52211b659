// Which messages of c10d are whose.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace gpipe {

// Tags that a pipeline uses, apart from those of others in the world.
struct Tags {
  // `channel`: see World::next_channel().
  explicit Tags(int channel)
      : header(4 * channel),
        payload(header + 1),
        words(header + 2),
        sums(header + 3) {}
  int header, payload;  // of messages
  int words;            // of what goes around at the ends of a step
  int sums;             // of gradients, over replicas, meanwhile

  // Of these bytes of a payload. A message of another length than its receiver
  // waits for would end the receiver's process, so what they are is part of
  // where they go: bytes that were announced as something else never arrive.
  int payload_of(int64_t bytes, at::ScalarType type) const;
};

}  // namespace gpipe
