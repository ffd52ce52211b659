#include "gpipe/runtime/device/copier.h"

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe {

std::optional<c10::Stream> Transport::copy_stream(const c10::Device& device) {
  if (!has_streams(device)) return std::nullopt;
  auto found = copy_streams_.find(device);
  if (found == copy_streams_.end()) {
    found = copy_streams_.emplace(device, *new_stream(device)).first;
  }
  return found->second;
}

at::Tensor Transport::bring(const at::Tensor& tensor, const Moment& ready,
                            CopyLog* log) {
  if (!tensor.defined()) return tensor;
  const c10::Device source = tensor.device();
  if (source == device_) {
    ready.before(device_);
    record_use(tensor, device_);
    return tensor;
  }

  at::Tensor copy;
  Moment copied;
  Stamp start, sent, there;
  const c10::Device from = has_streams(source) ? source : device_;
  {
    // A copy between two devices runs after the work on the current streams of
    // both, and before work that they get later.
    StreamScope on_source(copy_stream(source));
    StreamScope on_target(copy_stream(device_));
    ready.before(source);
    if (log) start = Stamp::now(from);
    copy = tensor.to(device_, /*non_blocking=*/true);
    if (log) sent = Stamp::now(from);
    if (log && has_streams(device_)) there = Stamp::now(device_);
    label_memory(copy, MemoryKind::kBoundary);
    record_use(tensor, source);
    copied = Moment::now(has_streams(device_) ? device_ : source);
  }
  // On a CPU this waits until the copy is complete.
  copied.before(device_);
  if (log) {
    if (!has_streams(device_)) there = Stamp::now(device_);
    const bool dense = tensor.layout() == at::kStrided;
    log->copies.push_back({log->made_by,
                           dense ? static_cast<double>(tensor.nbytes()) : 0,
                           from, start, sent, device_, there});
  }
  record_use(copy, device_);
  return copy;
}

}  // namespace gpipe
