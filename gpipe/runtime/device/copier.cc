#include "gpipe/runtime/device/copier.h"

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::internal {

at::Tensor Copier::to_device(const at::Tensor& tensor, const Event& ready,
                             CopyLog* log) {
  if (!tensor.defined()) return tensor;
  const c10::Device source = tensor.device();
  if (source == device_) {
    ready.wait(device_);
    record_stream(tensor, device_);
    return tensor;
  }

  at::Tensor copy;
  Event copied;
  Stamp start, sent, there;
  const c10::Device from = has_streams(source) ? source : device_;
  const auto entry = streams_.try_emplace(source, source, device_).first;
  const Streams& streams = entry->second;
  {
    // A copy between two devices runs after the work on the current streams of
    // both, and before work that they get later.
    StreamScope on_source(streams.on_source.get());
    StreamScope on_target(streams.on_target.get());
    ready.wait(source);
    if (log) start = Stamp::now(from);
    copy = tensor.to(device_, /*non_blocking=*/true);
    if (log) sent = Stamp::now(from);
    if (log && has_streams(device_)) there = Stamp::now(device_);
    label_memory(copy, MemoryKind::kBoundary);
    record_stream(tensor, source);
    copied = Event::record(has_streams(device_) ? device_ : source);
  }
  // On a CPU this waits until the copy is complete.
  copied.wait(device_);
  // The caller may fill an input that is pinned memory again after the step.
  if (is_read_late(tensor)) copied.wait(c10::Device(c10::kCPU));
  if (log) {
    if (!has_streams(device_)) there = Stamp::now(device_);
    const bool dense = tensor.layout() == at::kStrided;
    log->copies.push_back({log->made_by,
                           dense ? static_cast<double>(tensor.nbytes()) : 0,
                           from, start, sent, device_, there});
  }
  record_stream(copy, device_);
  return copy;
}

}  // namespace gpipe::internal
