// Transfers from accelerator to accelerator.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gpipe/distributed/carrier.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"

namespace gpipe {

// The engine of c10d that does it for one type of device. Registered by what is
// linked into the program (nccl.cc).
class DirectEngine {
 public:
  struct Offer {
    std::string why_not;  // not empty: it cannot, and why
    std::string version;  // must be the same on all ranks
    std::string device;   // what tells it from those of all other ranks
  };
  virtual ~DirectEngine() = default;

  virtual Offer offer(const c10::Device& device) const = 0;

  // One of two ends; the other one calls this with the other `rank`, 0 or 1,
  // and the same store, which nobody else has. What the group is given comes
  // after the current stream of the device, and has come once its work says
  // that it is completed.
  virtual c10::intrusive_ptr<c10d::Backend> connect(
      c10::intrusive_ptr<c10d::Store> store, int rank,
      const c10::Device& device, std::chrono::milliseconds timeout) const = 0;
};

// For the life of the program, before any pipeline is made.
void register_direct_engine(c10::DeviceType type,
                            std::unique_ptr<DirectEngine> engine);

// Returns kDirect for kDirect, else kHost. All ranks call this with the same
// `asked`; `device` is this rank's.
//
// Errors: c10::ValueError on all ranks, naming the rank, if one of them cannot
// transfer directly; PeerError.
Transfers agree_on_transfers(World& world, int tag, const c10::Device& device,
                             Transfers asked);

// `transfers`: as agreed. `name`: of this use of it, the same on all ranks.
std::unique_ptr<Carrier> make_carrier(World& world, const c10::Device& device,
                                      Transfers transfers,
                                      const std::string& name);

}  // namespace gpipe
