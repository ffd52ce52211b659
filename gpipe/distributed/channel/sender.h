// Sends the messages of one direction between two ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "gpipe/distributed/channel/channel_end.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/channel/tensor_spec.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/tags.h"
#include "gpipe/distributed/world/transport.h"
#include "gpipe/runtime/autograd/graph.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/worker.h"

namespace gpipe::internal {

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

  // Blocks until all messages have left, or the world has failed.
  void flush() { worker_.flush(); }

 private:
  // Returns the spec of `activation` as it is sent after the messages before,
  // and moves its bytes into `payload`.
  TensorSpec prepare(Activation& activation, const Event& made,
                     std::vector<at::Tensor>& payload);
  void transmit(Message& head, std::vector<Activation> content,
                const Event& made);

  // The tensors that all micro-batches share and that have been sent in step
  // `unsplit_step_`, by input element. Used by the Sender's thread.
  struct Unsplit {
    at::Tensor tensor;
    TensorSpec spec;
  };
  std::map<int, Unsplit> unsplit_;
  uint64_t unsplit_step_ = 0;

  Copier copier_;  // to the device of the transport
  Worker worker_;  // last: its thread must end first
};

}  // namespace gpipe::internal
