// How the bytes of tensors get from rank to rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "gpipe/distributed/world.h"

namespace gpipe {

// From the memory of one kind of device to the same kind.
//
// Threads: any; one at a time sends to a rank, and one receives from it.
class Carrier {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  virtual ~Carrier() = default;

  // Where bytes must lie.
  virtual c10::Device device() const = 0;

  // Begins to send or to receive bytes, a uint8 tensor of one dimension on
  // device() that lives until the work has been waited for (World::wait). What
  // this thread's current stream was given before comes first; after the wait
  // the bytes are there, for any stream. Between two ranks and in one direction
  // bytes are received as they are sent: in this order, with these tags and of
  // these lengths. PeerError if the connection is broken.
  virtual Work send(const at::Tensor& bytes, int to, int tag,
                    const World::Action& action) = 0;
  virtual Work receive(const at::Tensor& bytes, int from, int tag,
                       const World::Action& action) = 0;
};

// From CPU to CPU, on the connections of the world.
class HostCarrier final : public Carrier {
 public:
  explicit HostCarrier(World& world) : world_(world) {}

  c10::Device device() const override { return c10::Device(c10::kCPU); }
  Work send(const at::Tensor& bytes, int to, int tag,
            const World::Action& action) override {
    return world_.send(bytes, to, tag, action);
  }
  Work receive(const at::Tensor& bytes, int from, int tag,
               const World::Action& action) override {
    return world_.receive(bytes, from, tag, action);
  }

 private:
  World& world_;
};

}  // namespace gpipe
