// Where and when the work of a device runs, for devices of any type, without
// CUDA headers: streams, events, times, intra-op threads. Only this file knows
// that a CPU has no streams.
//
// `site` parameters name the caller for tests; leave them out.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/runtime/device/test_hooks.h"

namespace gpipe::internal {

// Returns whether `device` has streams. Without streams, an operator is done
// when it returns.
bool has_streams(const c10::Device& device);

// Throws c10::ValueError if the program is not linked with LibTorch's code for
// the type of `device`.
void check_linked(const c10::Device& device);

// Returns `device` with an index: the current device of its type if it has
// none. A CPU has no index. Throws as check_linked() does.
c10::Device with_index(const c10::Device& device);

// A stream of a device that has one owner; none for a device without streams. A
// stream whose owner is gone serves the next owner. So a process uses as many
// streams as have owners at the same time, however many pipelines it makes:
// LibTorch has a pool of 32, which two owners would share otherwise, and keeps
// a workspace of cuBLAS for every stream that has computed (32 MiB on Hopper)
// for the rest of the process. Thread-safe.
class OwnedStream {
 public:
  explicit OwnedStream(const c10::Device& device);
  ~OwnedStream();
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&&) = delete;

  const std::optional<c10::Stream>& get() const { return stream_; }

 private:
  std::optional<c10::Stream> stream_;
};

// Makes `stream`, if there is one, the current stream of its device, and its
// device the current device, on this thread while in scope.
class StreamScope {
 public:
  explicit StreamScope(std::optional<c10::Stream> stream,
                       Site site = Site::here());
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::optional<c10::Stream> outer_stream_;
  std::optional<c10::Device> outer_device_;
};

// An event: the end of the work that a stream had when the event was recorded.
// Copies share the same event. A default-constructed one has already happened.
//
// Threads: may be recorded on one thread and waited for on others, once it was
// passed there.
class Event {
 public:
  Event() = default;

  // Records an event on the current stream of `device` on this thread.
  static Event record(const c10::Device& device, Site site = Site::here());

  // Makes later work on the current stream of `device` on this thread wait for
  // this event. The host does not wait. If `device` has no streams, blocks the
  // host until the event has happened.
  void wait(const c10::Device& device, Site site = Site::here()) const;

 private:
  std::shared_ptr<c10::Event> event_;
};

// Keeps the memory of `tensor` from being reused before the current stream of
// `device` has done the work that it has when the tensor is released. Needed
// whenever a tensor is used on a stream other than the one it was allocated on.
void record_stream(const at::Tensor& tensor, const c10::Device& device,
                   Site site = Site::here());

// Returns whether a copy of `tensor` to an accelerator may read it after the
// call that began the copy has returned, although no stream orders what the
// host does meanwhile. True for pinned host memory. Other host memory has been
// read by then.
bool is_read_late(const at::Tensor& tensor);

// Records an event on the current stream of `device` on this thread, and
// returns it. It is taken from a pool, to which it goes back with its last
// reference: a step needs several events for each action, and to make and
// destroy one takes longer than to record it.
//
// `device`: must have streams. `timed`: whether the event has a time. Throws
// c10::Error if the device has failed. Thread-safe.
std::shared_ptr<c10::Event> record_event(const c10::Device& device, bool timed);

// The time at which a device reaches a point of its current stream. On a device
// with streams it is an event with a time, and the host does not wait for it.
// On other devices it is the host's clock. A default-constructed stamp is
// empty.
//
// Threads: may be taken on one thread and read on another, once it was passed
// there.
class Stamp {
 public:
  Stamp() = default;

  // Takes a stamp on the current stream of `device` on this thread.
  static Stamp now(const c10::Device& device);

  // Blocks until the device has reached the stamp.
  void wait() const;

  // Returns the seconds from `start`, a stamp of the same device. The host
  // waits for both.
  double seconds_since(const Stamp& start) const;

 private:
  std::shared_ptr<c10::Event> event_;
  std::chrono::steady_clock::time_point time_;
};

// Returns the intra-op threads of each CPU partition: an equal share of
// LibTorch's threads (at::get_num_threads() on this thread), at least 1.
int share_of_threads(const std::vector<c10::Device>& devices);

}  // namespace gpipe::internal
