// One direction between two ranks: messages, in order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "gpipe/distributed/tags.h"
#include "gpipe/distributed/wire.h"
#include "gpipe/distributed/world.h"
#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/stream.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/runtime/worker.h"

namespace gpipe {

// Sends to one rank. A thread of its own copies from the device, posts and
// waits, so that computing goes on.
class Outlet {
 public:
  Outlet(World& world, int to, Tags tags);

  // `content` is complete at `made`; `head.tensors` is filled in from it. What
  // goes wrong becomes a failure of the world. Threads: any.
  void send(Message head, std::vector<Crossing> content, Moment made);

  // Waits until everything has left, or the world has failed.
  void flush();

 private:
  void transmit(Message head, std::vector<Crossing> content,
                const Moment& made);

  World& world_;
  const int to_;
  const Tags tags_;
  Transport to_cpu_;
  Worker worker_;  // last: it ends first
};

// Receives from one rank, on a thread of its own.
class Inlet {
 public:
  // The tensors are on the CPU.
  using Deliver = std::function<void(const Message&, std::vector<at::Tensor>)>;

  Inlet(World& world, int from, Tags tags);

  // Takes these messages, in this order, and gives each to `deliver`, on the
  // inlet's thread. A message that is another is a failure of the world, on
  // both sides.
  void expect(std::vector<MessageId> messages, Deliver deliver);

  // Waits until all have come, or the world has failed.
  void flush();

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  struct Header {
    at::Tensor bytes;
    WorkPtr work;
  };

  Header post_header(const MessageId& expected);
  Message read_header(Header header, const MessageId& expected);
  std::vector<at::Tensor> read_tensors(const Message& message);
  WorkPtr receive(const at::Tensor& bytes, int tag, const MessageId& expected);
  void wait(c10d::Work& work, const MessageId& expected);

  World& world_;
  const int from_;
  const Tags tags_;
  Worker worker_;  // last: it ends first
};

}  // namespace gpipe
