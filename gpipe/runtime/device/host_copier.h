// Copies between the memory of an accelerator and the host's.
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
#include <utility>
#include <vector>

#include "gpipe/runtime/device/stamp.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {

// Host buffers that are used again. Thread-safe.
class HostBuffers {
 public:
  // A buffer in use. It goes back when it is destroyed.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(std::shared_ptr<HostBuffers> owner, at::Tensor bytes)
        : owner_(std::move(owner)), bytes_(std::move(bytes)) {}
    Buffer(Buffer&& other) noexcept = default;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer() { give_back(); }
    // Returns the memory, a contiguous CPU tensor of bytes.
    const at::Tensor& bytes() const { return bytes_; }

   private:
    void give_back();
    std::shared_ptr<HostBuffers> owner_;
    at::Tensor bytes_;
  };

  // `pinned`: whether to allocate memory that a device can access.
  explicit HostBuffers(bool pinned) : pinned_(pinned) {}

  // Returns a buffer of `self` with at least `bytes` bytes: the smallest unused
  // one, unless it is more than twice as large, or a new one. Throws c10::Error
  // if the host has no memory.
  static Buffer take(const std::shared_ptr<HostBuffers>& self,
                     std::size_t bytes);

 private:
  const bool pinned_;
  std::mutex mutex_;
  std::multimap<std::size_t, at::Tensor> unused_;  // by size
};

// Returns whether `device` has memory apart from the host's, so that a copy to
// the host frees some. True for accelerators. True also for the meta device,
// where a dry run counts the memory: nothing is copied there.
bool has_own_memory(const c10::Device& device);

// The copies between the device of one rank and the host, for all stages of the
// rank. Used by the rank's worker only.
//
// Each direction has a stream of its own. Its copies run one after the other,
// beside computation and beside the other direction, as on the two links of a
// rank in the simulator (Costs::host_bandwidth). At most one copy to the host
// is under way when another one begins, so that a host that runs ahead of the
// device does not make the device hold more.
class HostCopier {
 public:
  // `device`: if it has no memory of its own, only finish() may be called.
  explicit HostCopier(c10::Device device);

  // The times of a copy, on its stream.
  struct Times {
    Stamp start, end;
  };

  // Copies of device memory on the host.
  class OnHost {
   public:
    OnHost() = default;

   private:
    friend class HostCopier;
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
  std::vector<c10::Storage> to_device(const OnHost& on_host, Event* ready,
                                      Times* times);

  // Blocks the host until the last copy to the host is done, and releases the
  // device memory that it has read.
  void finish();

 private:
  // Returns the stream, and makes it when it is first needed.
  const std::optional<c10::Stream>& use(std::optional<OwnedStream>& stream);
  // Leaves the memory that the last copy to the host reads to the allocator.
  void release();
  // Begin the copies of all storages, on the current stream.
  void copy_to_host(const OnHost& to);
  void copy_to_device(const OnHost& from,
                      const std::vector<c10::Storage>& storages);

  const c10::Device device_;
  std::shared_ptr<HostBuffers> buffers_;
  std::optional<OwnedStream> to_host_, from_host_;
  // The last copy to the host: its number, what it reads, and its end.
  int64_t number_ = 0;
  std::vector<c10::Storage> reading_;
  Event copied_;
};

}  // namespace gpipe::internal
