// Brings tensors of other partitions to a partition's device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <unordered_map>

#include "gpipe/runtime/copy_log.h"
#include "gpipe/runtime/stream.h"

namespace gpipe {

// Belongs to one partition and is used by its worker only.
//
// Between devices a copy runs on streams of its own on both of them, so that
// it overlaps what the producer and the consumer compute meanwhile; each
// stream is kept for the life of the pipeline, since memory that a caching
// allocator holds for a stream is of use to that stream only. On one device,
// and between CPU partitions, the tensor is handed over as it is.
class Transport {
 public:
  explicit Transport(c10::Device device) : device_(device) {}

  // `tensor`, complete at `ready`, for use on this thread's current stream of
  // the partition's device. Undefined stays undefined. If it is copied, `log`
  // gets the times.
  at::Tensor bring(const at::Tensor& tensor, const Moment& ready,
                   CopyLog* log = nullptr);

 private:
  std::optional<c10::Stream> copy_stream(const c10::Device& device);

  c10::Device device_;
  std::unordered_map<c10::Device, c10::Stream> copy_streams_;
};

}  // namespace gpipe
