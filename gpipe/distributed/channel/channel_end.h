// The common part of a Sender and a Receiver.
#pragma once

#include <c10/core/Stream.h>

#include <exception>
#include <functional>
#include <optional>

#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/channel/shape_prediction.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/tags.h"
#include "gpipe/distributed/world/transport.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {

// One end of a channel, which is one direction between two ranks. The world
// transfers the headers, the transport `transport_` the tensors.
class ChannelEnd {
 public:
  // Throws the exception by which this end has failed, if any. Failures of
  // other ranks are not thrown here; see Communicator::check(). Call it after
  // flush().
  void rethrow() const;

 protected:
  // `peer`: the rank at the other end.
  ChannelEnd(Communicator& world, Transport& transport, int peer, Tags tags);

  // Runs `part`. An exception is reported as a failure of this rank and kept
  // for rethrow(), unless the world has failed before.
  void guard(const MessageId& message, const std::function<void()>& part);

  // Returns the predicted tensors of `message`, whose receives are posted
  // before it is certain that it comes; null if there is no prediction or if
  // the transport does not allow that. The pointer is valid until observe().
  const ShapePrediction::Specs* predict(const MessageId& message) const {
    return transport_.takes_early_receives() ? prediction_.predict(message)
                                             : nullptr;
  }

  Communicator& world_;
  Transport& transport_;
  const int peer_;
  const Tags tags_;
  const OwnedStream stream_;  // of this end's thread
  ShapePrediction prediction_;

 private:
  std::exception_ptr thrown_;
};

}  // namespace gpipe::internal
