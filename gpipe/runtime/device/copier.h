// Copies to the device of a rank, from other devices and from the host, and to
// the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/runtime/device/stream.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// A log of copies between devices. Not thread-safe.
struct CopyLog {
  struct Copy {
    Action made_by;
    double bytes = 0;
    // The source device of the copy; the target device if the source has no
    // streams. `start`: when the copy has all that it waits for. `sent`: when
    // the copy is done. Both are taken on the stream of `from`.
    c10::Device from;
    Stamp start, sent;
    // The target device. `end`: when the copy can be used there.
    c10::Device to;
    Stamp end;
  };

  // A copy to the host (O) or back (L). The times are taken on the stream of
  // the copy. `place`: as in gpipe::HostCopy.
  struct ToOrFromHost {
    Action action;
    std::size_t place = 0;
    Stamp start, end;
  };

  // The action that made the tensors of the next copies. A gradient counts as
  // made by a whole backward (ActionKind::kBackward).
  Action made_by;
  std::vector<Copy> copies;
  // The `place` of the next copies to and from the host; set by the executor.
  std::size_t place = 0;
  std::vector<ToOrFromHost> host_copies;
};

// Host buffers that are used again. Thread-safe.
class HostBuffers {
 public:
  // A buffer in use: a contiguous CPU tensor of bytes. It goes back with its
  // last holder.
  using Buffer = std::shared_ptr<const at::Tensor>;

  // `pinned`: whether to allocate memory that a device can access.
  explicit HostBuffers(bool pinned) : pinned_(pinned) {}

  // Returns a buffer of `self` with at least `bytes` bytes: the smallest unused
  // one, unless it is more than twice as large, or a new one. Before a new one,
  // releases unused ones, the smallest first, until they hold no more bytes
  // than were ever in use. Throws c10::Error if the host has no memory.
  static Buffer take(const std::shared_ptr<HostBuffers>& self,
                     std::size_t bytes);

 private:
  // Returns the memory of an unused buffer. If there is none, releases some and
  // returns an undefined tensor.
  at::Tensor take_unused(std::size_t bytes);

  const bool pinned_;
  std::mutex mutex_;
  std::multimap<std::size_t, at::Tensor> unused_;  // by size
  std::size_t in_use_ = 0, most_in_use_ = 0;       // bytes
};

// Returns whether `device` has memory apart from the host's, so that a copy to
// the host frees some. True for accelerators. True also for the meta device,
// where a dry run counts the memory: nothing is copied there.
bool has_own_memory(const c10::Device& device);

// The copies of one rank, for all its stages: they share a device, a worker and
// the links of the device. Used by the rank's worker only.
//
// From other devices: a copy runs on copy streams of both devices, so that it
// overlaps with computation of producer and consumer. Each source device has
// two streams of its own, so that activations do not queue behind gradients.
// Each stream is kept as long as the pipeline lives, because memory that a
// caching allocator holds for a stream can only be used by that stream. On one
// device, and between CPU partitions, the tensor is passed without a copy.
//
// To and from the host: each direction has a stream of its own. Its copies run
// one after the other, beside computation and beside the other direction, as on
// the two links of a rank in the simulator (Costs::host_bandwidth). At most one
// copy to the host is under way when another one begins, so that a host that
// runs ahead of the device does not make the device hold more.
class Copier {
 public:
  // `device`: if it has no memory of its own (has_own_memory()), to_host() and
  // from_host() may not be called.
  explicit Copier(c10::Device device);

  // Returns `tensor`, complete at event `ready`, for use on this thread's
  // current stream of the rank's device. An undefined tensor stays
  // undefined. If there is a copy, `log` (may be null) receives its times.
  at::Tensor to_device(const at::Tensor& tensor, const Event& ready,
                       CopyLog* log = nullptr);

  // The times of a copy, on its stream.
  struct Times {
    Stamp start, end;
  };

  // Copies of device memory on the host.
  class OnHost {
   public:
    OnHost() = default;

   private:
    friend class Copier;
    HostBuffers::Buffer buffer_;
    std::vector<std::size_t> offsets_, sizes_;  // bytes, by storage
    int64_t number_ = 0;
  };

  // Begins to copy `storages` to the host, after the work that the current
  // stream of the device has. Blocks the host until the previous copy to the
  // host is done. Keeps `storages` until the next call of another function.
  // `times` may be null. Throws c10::Error if the host has no memory.
  OnHost to_host(std::vector<c10::Storage> storages, Times* times);

  // Begins to copy back what to_host() has copied, into new memory that belongs
  // to the current stream of the device. Returns the storages in the order of
  // to_host(). `ready`: the event after which they can be used. They and
  // `on_host` must live until then. Blocks the host if the copy of `on_host` to
  // the host is not done. Another copy to the host does not delay it: the
  // memory that the other copy reads is left to the device's allocator, which
  // uses it again after the copy. Throws c10::OutOfMemoryError if the device is
  // full.
  std::vector<c10::Storage> from_host(const OnHost& on_host, Event* ready,
                                      Times* times);

  // Blocks the host until the last copy to the host is done, and releases the
  // device memory that it has read.
  void finish();

 private:
  // The streams of the copies from one device. A CPU has none.
  struct Streams {
    Streams(const c10::Device& source, const c10::Device& target)
        : on_source(source), on_target(target) {}
    OwnedStream on_source, on_target;
  };

  // Returns the stream, and makes it when it is first needed.
  const std::optional<c10::Stream>& use(std::optional<OwnedStream>& stream);
  // Leaves the memory that the last copy to the host reads to the allocator.
  void release();
  // Begins to copy `storages` to the host (`away`) or back, on `stream`, after
  // the work that the current stream has. Returns the event of their end.
  Event run_copy(std::optional<OwnedStream>& stream, const OnHost& on_host,
                 const std::vector<c10::Storage>& storages, bool away,
                 Times* times);

  const c10::Device device_;
  std::unordered_map<c10::Device, Streams> streams_;  // by source
  std::shared_ptr<HostBuffers> buffers_;
  std::optional<OwnedStream> to_host_, from_host_;
  // The last copy to the host: its number, what it reads, and its end.
  int64_t number_ = 0;
  std::vector<c10::Storage> reading_;
  Event copied_;
};

// Returns `scalars` on the host, with one copy from each device, for which the
// host waits. (item() waits once for each scalar.) They are real numbers of any
// dtypes on any devices; the results have the same dtypes, and no graph.
std::vector<at::Tensor> scalars_on_host(const std::vector<at::Tensor>& scalars);

// Returns the values of floating-point `scalars`, read in the same way.
std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars);

}  // namespace gpipe::internal
