// Transports: how the bytes of tensors get from rank to rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace gpipe::internal {

// A transport between the memories of devices of one type, on different ranks.
//
// Threads: any thread may call. At most one thread at a time sends to a given
// rank, and at most one receives from it.
class Transport {
 public:
  // A transfer that has started; null if it is complete already.
  using Work = c10::intrusive_ptr<c10d::Work>;

  // A function that returns what this rank is doing, for error texts. It is
  // called only when an error text needs it, on any thread.
  using Action = std::function<std::string()>;

  virtual ~Transport() = default;

  // Returns the device where the bytes to send or to receive must be.
  virtual c10::Device device() const = 0;

  // Returns whether a receive may be posted before it is certain that its send
  // comes without further work of this rank. On a device it may not: the
  // receive occupies the device until the bytes are there, and this rank's work
  // may wait for the device. Both ends return the same.
  virtual bool takes_early_receives() const = 0;

  // send() starts to send `bytes` to rank `to`; receive() starts to receive
  // `bytes` from rank `from`. Both return the started work, which is complete
  // when Communicator::wait() has returned. Both may block until the other rank
  // makes its call, and until the transfer is complete (direct transfers).
  //
  // `bytes`: a uint8 tensor of one dimension on device(). It must live until
  // Communicator::wait() has returned. The transfer starts after the work that
  // this thread's current stream already has; after the wait, any stream may
  // use the bytes.
  //
  // Between two ranks and in one direction, receives must match sends in order,
  // tag and length. Throws PeerError if the connection is broken.
  virtual Work send(const at::Tensor& bytes, int to, int tag,
                    const Action& action) = 0;
  virtual Work receive(const at::Tensor& bytes, int from, int tag,
                       const Action& action) = 0;

  // A function that starts a collective operation in a group, on device().
  using Collective = std::function<Work(c10d::Backend& group)>;

  // Returns whether collective() may be called; all ranks return the same.
  virtual bool has_collectives() const { return false; }

  // Calls `post` with a group of `members` (ranks in ascending order, this one
  // among them), and blocks until its operation is complete. All members call
  // it, one thread of each. Any stream may use the result. Throws PeerError if
  // the world has failed.
  virtual void collective(const std::vector<int>& /*members*/,
                          const Collective& /*post*/,
                          const Action& /*action*/) {
    TORCH_INTERNAL_ASSERT(false, "this transport has no collectives");
  }
};

}  // namespace gpipe::internal
