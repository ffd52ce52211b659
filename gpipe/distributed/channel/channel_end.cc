#include "gpipe/distributed/channel/channel_end.h"

#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {

ChannelEnd::ChannelEnd(Communicator& world, Transport& transport, int peer,
                       Tags tags)
    : world_(world),
      transport_(transport),
      peer_(peer),
      tags_(tags),
      stream_(transport.device()) {}

void ChannelEnd::rethrow() const {
  if (thrown_) std::rethrow_exception(thrown_);
}

void ChannelEnd::guard(const MessageId& message,
                       const std::function<void()>& part) {
  try {
    part();
  } catch (...) {
    if (world_.failure()) return;
    thrown_ = std::current_exception();
    world_.fail(thrown_, message.to_string());
  }
}

}  // namespace gpipe::internal
