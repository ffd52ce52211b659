// One direction between two ranks: messages, in order.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "gpipe/distributed/carrier.h"
#include "gpipe/distributed/forecast.h"
#include "gpipe/distributed/tags.h"
#include "gpipe/distributed/wire.h"
#include "gpipe/distributed/world.h"
#include "gpipe/runtime/cell.h"
#include "gpipe/runtime/stream.h"
#include "gpipe/runtime/transport.h"
#include "gpipe/runtime/worker.h"

namespace gpipe {

// Sends to one rank: headers by the world, tensors by the carrier. A thread of
// its own brings them to the carrier's device, posts and waits, so that
// computing goes on.
class Outlet {
 public:
  Outlet(World& world, Carrier& carrier, int to, Tags tags);

  // `content` is complete at `made`; `head.tensors` is filled in from it. What
  // goes wrong becomes a failure of the world. `sent`, if any, is called on the
  // outlet's thread when all has left. Threads: any.
  using Sent = std::function<void(const Message&)>;
  void send(Message head, std::vector<Crossing> content, Moment made,
            Sent sent = {});

  // Waits until everything has left, or the world has failed.
  void flush();

  // After flush(): throws what this end has failed by, if it has. What is the
  // fault of others is the world's failure alone.
  void rethrow();

 private:
  void transmit(Message& head, std::vector<Crossing> content,
                const Moment& made);

  World& world_;
  Carrier& carrier_;
  const int to_;
  const Tags tags_;
  Transport transport_;  // to the carrier's device
  const std::optional<c10::Stream> stream_;
  Forecast forecast_;
  std::exception_ptr thrown_;
  Worker worker_;  // last: it ends first
};

// Receives from one rank, on a thread of its own.
//
// A message is posted while the one before it comes: its header, and, if it can
// be foreseen, all else too. So its bytes travel as soon as they are sent,
// without a way back and forth, in which a thread on each side would have to
// get a core from those who compute.
class Inlet {
 public:
  // The tensors are on the carrier's device, for use on any stream; the header
  // was here at `began`.
  using Time = std::chrono::steady_clock::time_point;
  using Deliver =
      std::function<void(const Message&, std::vector<at::Tensor>, Time began)>;

  Inlet(World& world, Carrier& carrier, int from, Tags tags);

  // Takes these messages, in this order, and gives each to `deliver`, on the
  // inlet's thread. A message that is another, or that `deliver` refuses by a
  // c10::Error, is a failure of the world by its sender, on both sides; what
  // else goes wrong here is one of this rank.
  void expect(std::vector<MessageId> messages, Deliver deliver);

  // Waits until all have come, or the world has failed.
  void flush();

  // As Outlet's.
  void rethrow();

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  // Memory, and what writes into it.
  struct Posted {
    at::Tensor tensor;
    WorkPtr work;  // null: nothing to wait for
  };
  // What comes after a header.
  struct Content {
    Posted overflow;
    std::vector<Posted> tensors;
  };
  struct Incoming {
    Posted header;
    std::optional<Content> foreseen;
  };

  // Has a look at what has come: what it does not like is its sender's fault.
  template <typename Look>
  void look_at(const MessageId& expected, Look look);
  Incoming post(const MessageId& expected);
  Posted post_overflow(int64_t bytes, const MessageId& expected);
  std::vector<Posted> post_tensors(const Forecast::Specs& specs,
                                   const MessageId& expected);
  // Its tensors are posted, if they have not come yet.
  Message read(Incoming incoming, const MessageId& expected,
               std::vector<Posted>& tensors);
  void wait(const Posted& posted, const MessageId& expected);

  World& world_;
  Carrier& carrier_;
  const int from_;
  const Tags tags_;
  const std::optional<c10::Stream> stream_;
  Forecast forecast_;
  std::exception_ptr thrown_;
  Worker worker_;  // last: it ends first
};

}  // namespace gpipe
