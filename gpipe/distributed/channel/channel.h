// Channels: the messages of one direction between two ranks, and both ends.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/worker.h"

namespace gpipe::internal {

// A table of predicted messages for one direction between two ranks. The sender
// and the receiver have one each. Both see the same messages in the same order,
// so both always predict the same.
//
// Not thread-safe.
class ShapePrediction {
 public:
  using Specs = std::vector<TensorSpec>;

  // Returns the predicted tensors of `message` if it had the same ones in its
  // last two steps, else null. (Predictions after only one step would be wrong
  // more often.) The pointer is valid until observe() is called.
  const Specs* predict(MessageId message) const;

  // Records that `message` had the tensors `specs`.
  void observe(MessageId message, const Specs& specs);

 private:
  struct Past {
    Specs specs;
    bool twice = false;
  };
  std::map<MessageId, Past> past_;  // by message of step 0
};

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

// A sender of messages to one rank. A thread of the Sender copies the tensors
// to the transport's device, posts the sends and waits for them, so that the
// worker goes on computing.
class Sender : public ChannelEnd {
 public:
  Sender(Communicator& world, Transport& transport, int to, Tags tags);

  // Sends `content` behind the header `head`, after all earlier messages;
  // returns at once. `head.tensors` is filled in from `content`. The copies
  // wait for the event `made`, which marks when `content` is complete. `sent`,
  // if not empty, is called on the Sender's thread when the whole message has
  // left. If something throws, the world fails. Threads: any.
  using Sent = std::function<void(const Message&)>;
  void send(Message head, std::vector<Activation> content, Event made,
            Sent sent = {});

  // Ends a step: blocks until all messages have left, or the world has failed.
  // Releases what the step has sent. No other thread may call send() meanwhile.
  void flush() {
    worker_.flush();
    unsplit_.clear();
  }

 private:
  // Returns the spec of `activation` as it is sent after the messages before,
  // and moves its bytes into `payload`.
  TensorSpec prepare(Activation& activation, const Event& made,
                     std::vector<at::Tensor>& payload);
  void transmit(Message& head, std::vector<Activation> content,
                const Event& made);

  // The tensors that all micro-batches share and that have been sent in this
  // step, by number. Used by the Sender's thread, and by flush() when that
  // thread is idle.
  struct Unsplit {
    at::Tensor tensor;
    TensorSpec spec;
  };
  std::map<int, Unsplit> unsplit_;

  Copier copier_;  // to the device of the transport
  Worker worker_;  // last: its thread must end first
};

// A receiver of messages from one rank, with a thread of its own.
//
// While a message arrives, the receives for the next one are already posted:
// for its header and, if they are predicted (ShapePrediction), for its
// tensors. So the bytes travel as soon as they are sent. A request and an
// answer per message would need a free core on both sides, while the workers
// use all cores.
class Receiver : public ChannelEnd {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Arrival {
    Time began;   // when the header had arrived
    Event ready;  // after which the tensors are complete
  };
  // A callback for each message. The tensors are on `device`, for use on any
  // stream after `ready`.
  using Deliver = std::function<void(const Message&, std::vector<at::Tensor>,
                                     const Arrival&)>;

  // `device`: if it is an accelerator and `transport` is between hosts, this
  // thread copies tensors there as soon as they have arrived, from pinned
  // memory and on a stream of its own, beside the worker's computation.
  Receiver(Communicator& world, Transport& transport, const c10::Device& device,
           int from, Tags tags);

  // Receives `messages` in this order and calls `deliver` for each, on the
  // Receiver's thread. Returns at once.
  //
  // If a message is not the expected one, or `deliver` throws c10::Error, the
  // sender is reported as failed on both ranks (Fault::kDisagree). Any other
  // exception is reported as a failure of this rank; so is
  // lack of memory (is_out_of_memory()).
  void expect(std::vector<MessageId> messages, Deliver deliver);

  // Blocks until all messages have arrived, or the world has failed.
  void flush() { worker_.flush(); }

 private:
  // Memory, and the receive that writes into it.
  struct Posted {
    at::Tensor tensor;
    Transport::Work work;  // null if there is nothing to wait for
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

  // The tensors that all micro-batches share, by number.
  using Unsplit = std::map<int, at::Tensor>;
  // Sets the tensors of `message` that are repeated to those of an earlier
  // message in `unsplit`, and adds new ones there. Throws c10::Error if an
  // earlier one is missing or does not fit.
  static void complete(const Message& message, Unsplit& unsplit,
                       std::vector<at::Tensor>& tensors);

  // Runs `check` on what has arrived. A c10::Error that it throws is reported
  // as a failure of the sender, and a PeerError is thrown instead.
  template <typename Check>
  void check_received(const MessageId& expected, Check check);
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
  // Begins to copy `tensors` to the device, if they are elsewhere. Returns when
  // they are complete there.
  Event bring(std::vector<at::Tensor>& tensors);

  const c10::Device device_;
  const std::optional<OwnedStream> copy_stream_;  // if tensors are brought
  Worker worker_;  // last: its thread must end first
};

}  // namespace gpipe::internal
