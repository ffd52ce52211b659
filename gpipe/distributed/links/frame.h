// What the two ends of a link tell each other.
#pragma once

#include <cstdint>

namespace gpipe::internal {

// A frame, in the byte order of the host.
struct Frame {
  enum Kind : uint32_t {
    kReady = 1,   // a receive of `bytes` is posted
    kData = 2,    // the next `bytes` of the message follow
    kShared = 3,  // these are in the shared memory
    kTaken = 4,   // `bytes` of there have been read
    kLook = 5,    // there are notices in the shared memory
  };
  uint32_t kind = 0;
  int32_t tag = 0;
  uint64_t bytes = 0;
};

}  // namespace gpipe::internal
