// Brings tensors of other devices to the device of a rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <unordered_map>

#include "gpipe/runtime/device/copy_log.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {

// The copies to the device of one rank, for all stages of the rank. Used by the
// rank's worker only.
//
// Between devices, a copy runs on copy streams of both devices, so that it
// overlaps with computation of producer and consumer. Each source device has
// two streams of its own, so that activations do not queue behind gradients.
// Each stream is kept as long as the pipeline lives, because memory that a
// caching allocator holds for a stream can only be used by that stream. On one
// device, and between CPU partitions, the tensor is passed without a copy.
class Copier {
 public:
  explicit Copier(c10::Device device) : device_(device) {}

  // Returns `tensor`, complete at event `ready`, for use on this thread's
  // current stream of the rank's device. An undefined tensor stays
  // undefined. If there is a copy, `log` (may be null) receives its times.
  at::Tensor to_device(const at::Tensor& tensor, const Event& ready,
                       CopyLog* log = nullptr);

 private:
  // The streams of the copies from one device. A CPU has none.
  struct Streams {
    Streams(const c10::Device& source, const c10::Device& target)
        : on_source(source), on_target(target) {}
    OwnedStream on_source, on_target;
  };

  c10::Device device_;
  std::unordered_map<c10::Device, Streams> streams_;  // by source
};

}  // namespace gpipe::internal
