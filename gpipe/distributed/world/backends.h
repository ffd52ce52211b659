// The backends of c10d between ranks, by type of device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace gpipe::internal {

// A backend of c10d that transfers directly between devices of one type. A
// source file that is linked into the program registers it (nccl.cc).
class DeviceTransportBackend {
 public:
  // The abilities of one rank, compared among all ranks.
  struct Offer {
    std::string why_not;  // reason if it cannot transfer; empty if it can
    std::string version;  // must be the same on all ranks
    std::string device;   // a name, different from those of other devices
    // Reason if no other rank may have this device, with what to do; empty if
    // others may.
    std::string why_not_shared;
  };
  virtual ~DeviceTransportBackend() = default;

  // Returns c10d's name of the backend.
  virtual std::string name() const = 0;

  // Whether transfers run on streams of high priority. On CUDA, computations
  // run on streams of normal priority from a pool of 32, which are used in
  // turn. A transfer on one of these would hold up a computation.
  static constexpr bool kHighPriorityStreams = true;

  // Returns what this rank can do with `device`.
  virtual Offer offer(const c10::Device& device) const = 0;

  // Returns member `rank` of a group of `size` ranks. The others call this with
  // another `rank` and the same `store`, which nothing else uses. A transfer
  // starts after the work that the current stream of the device already has. It
  // is complete when its work says so (Work::isCompleted()). The first one may
  // block until the other members have begun it, too; abort() of the group ends
  // that on any thread. Groups have send() and recv(), allreduce() and
  // _reduce_scatter_base().
  // `timeout`: for each operation of the returned group.
  virtual c10::intrusive_ptr<c10d::Backend> connect(
      c10::intrusive_ptr<c10d::Store> store, int rank, int size,
      const c10::Device& device, std::chrono::milliseconds timeout) const = 0;
};

// Registers `backend` for devices of `type`, for the life of the program. Call
// it before any World is made. Not thread-safe.
void register_backend(c10::DeviceType type,
                      std::unique_ptr<DeviceTransportBackend> backend);

// Returns the backend for devices of `type`; null if this program has none.
const DeviceTransportBackend* backend_of(c10::DeviceType type);

// Returns the backends that `text` names: "gloo", or one for each type of
// device, such as "cpu:gloo,cuda:nccl". Throws c10::ValueError, which lists
// those of this program, if there is no such backend.
std::map<c10::DeviceType, std::string> parse_backends(const std::string& text);

// Returns the names of all backends of this program: "gloo", or
// "cpu:gloo,cuda:nccl" in a program with NCCL.
std::string all_backends();

// Returns whether a backend of `text`, which is valid, transfers directly
// between accelerators.
bool names_direct_transfers(const std::string& text);

}  // namespace gpipe::internal
