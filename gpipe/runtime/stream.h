// Streams and events of any accelerator, without naming one. The one place
// that knows that a CPU has neither.
//
// A `site` says who asks, for tests; leave it out.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>

#include "gpipe/runtime/ordering.h"

namespace gpipe {

// False for devices that have done an operator when it returns.
bool has_streams(const c10::Device& device);

// What a device named without an index stands for: the current one of its
// type. A CPU has none.
c10::Device with_index(const c10::Device& device);

// A new stream of `device`; none where there are no streams.
std::optional<c10::Stream> new_stream(const c10::Device& device);

// Makes `stream`, if any, the current one of its device, and its device the
// current one, on this thread while in scope.
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

// The end of what a stream had been given when the moment was taken. Copies
// stand for the same moment. A default-constructed one has passed.
//
// Threads: may be taken on one thread and waited for on others, once it has
// been handed over.
class Moment {
 public:
  Moment() = default;

  // On the current stream of `device` on this thread.
  static Moment now(const c10::Device& device, Site site = Site::here());

  // Work given later to the current stream of `device` on this thread comes
  // after this moment. The host goes on, except for a device without streams,
  // for which it waits.
  void before(const c10::Device& device, Site site = Site::here()) const;

 private:
  std::shared_ptr<c10::Event> event_;
};

// Keeps the memory of `tensor` from being used again before the current
// stream of `device` has done what it has been given until the tensor is
// released. Wanted whenever a tensor is used on another stream than the one
// that it was allocated on.
void record_use(const at::Tensor& tensor, const c10::Device& device,
                Site site = Site::here());

}  // namespace gpipe
