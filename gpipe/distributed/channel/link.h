// The sender and the receiver for one direction between two ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "gpipe/distributed/channel/shape_prediction.h"
#include "gpipe/distributed/channel/transport.h"
#include "gpipe/distributed/channel/wire.h"
#include "gpipe/distributed/world/tags.h"
#include "gpipe/distributed/world/world.h"
#include "gpipe/runtime/cell/cell.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/worker.h"

namespace gpipe::internal {

// A sender of messages to one rank. The world sends the headers, the transport
// `transport` sends the tensors. A thread of the Sender copies the tensors to
// the transport's device, posts the sends and waits for them, so that the
// worker goes on computing.
class Sender {
 public:
  Sender(World& world, Transport& transport, int to, Tags tags);

  // Sends `content` behind the header `head`, after all earlier messages;
  // returns at once. `head.tensors` is filled in from `content`. The copies
  // wait for the event `made`, which marks when `content` is complete. `sent`,
  // if not empty, is called on the Sender's thread when the whole message has
  // left. If something throws, the world fails. Threads: any.
  using Sent = std::function<void(const Message&)>;
  void send(Message head, std::vector<Activation> content, Event made,
            Sent sent = {});

  // Blocks until all messages have left, or the world has failed.
  void flush();

  // Throws the exception by which this sender has failed, if any. Failures of
  // other ranks are not thrown here; see World::check(). Call it after flush().
  void rethrow();

 private:
  void transmit(Message& head, std::vector<Activation> content,
                const Event& made);

  World& world_;
  Transport& transport_;
  const int to_;
  const Tags tags_;
  Copier copier_;  // to the device of `transport_`
  const std::optional<c10::Stream> stream_;
  ShapePrediction prediction_;
  std::exception_ptr thrown_;
  Worker worker_;  // last: its thread must end first
};

// A receiver of messages from one rank, with a thread of its own.
//
// While a message arrives, the receives for the next one are already posted:
// for its header and, if they are predicted (forecast.h), for its tensors. So
// the bytes travel as soon as they are sent. A request and an answer per
// message would need a free core on both sides, while the workers use all
// cores.
class Receiver {
 public:
  // A callback for each message. The tensors are on the device of `transport`,
  // for use on any stream. `began`: when the header had arrived.
  using Time = std::chrono::steady_clock::time_point;
  using Deliver =
      std::function<void(const Message&, std::vector<at::Tensor>, Time began)>;

  Receiver(World& world, Transport& transport, int from, Tags tags);

  // Receives `messages` in this order and calls `deliver` for each, on the
  // Receiver's thread. Returns at once.
  //
  // If a message is not the expected one, or `deliver` throws c10::Error, the
  // sender is reported as failed on both ranks (Fault::kDisagree). Any other
  // exception is reported as a failure of this rank; so is
  // c10::OutOfMemoryError.
  void expect(std::vector<MessageId> messages, Deliver deliver);

  // Blocks until all messages have arrived, or the world has failed.
  void flush();

  // Throws the exception by which this receiver has failed, if any. Call it
  // after flush().
  void rethrow();

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  // Memory, and the receive that writes into it.
  struct Posted {
    at::Tensor tensor;
    WorkPtr work;  // null if there is nothing to wait for
  };
  // The messages of c10d that follow a header.
  struct Content {
    Posted overflow;
    std::vector<Posted> tensors;
  };
  // A message whose header is posted, and whose content too if it is predicted.
  struct Incoming {
    Posted header;
    std::optional<Content> predicted;
  };

  // Runs `look`, a check of what has arrived. A c10::Error that it throws is
  // reported as a failure of the sender, and a PeerError is thrown instead.
  template <typename Look>
  void look_at(const MessageId& expected, Look look);
  // Posts the receives for the next message.
  Incoming post(const MessageId& expected);
  Posted post_overflow(int64_t bytes, const MessageId& expected);
  std::vector<Posted> post_tensors(const ShapePrediction::Specs& specs,
                                   const MessageId& expected);
  // Waits for the header and returns it. Posts `tensors` unless they were
  // predicted.
  Message read(Incoming incoming, const MessageId& expected,
               std::vector<Posted>& tensors);
  void wait(const Posted& posted, const MessageId& expected);

  World& world_;
  Transport& transport_;
  const int from_;
  const Tags tags_;
  const std::optional<c10::Stream> stream_;
  ShapePrediction prediction_;
  std::exception_ptr thrown_;
  Worker worker_;  // last: its thread must end first
};

}  // namespace gpipe::internal
