#include "gpipe/runtime/device/stream.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/runtime/device/event_pool.h"

namespace gpipe::internal {
namespace {

c10::impl::VirtualGuardImpl implementation(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

c10::Stream current_stream(const c10::Device& device) {
  return implementation(device).getStream(device);
}

}  // namespace

bool has_streams(const c10::Device& device) {
  return !device.is_cpu() && !device.is_meta();
}

void check_linked(const c10::Device& device) {
  TORCH_CHECK_VALUE(
      !has_streams(device) || c10::impl::hasDeviceGuardImpl(device.type()),
      "this program is not linked with LibTorch's code for the device ", device,
      device.is_cuda()
          ? "; add the dependency @gpipe//third_party/libtorch:cuda to the "
            "program, build it with --define=gpipe_cuda=1 (in the gpipe "
            "repository: --config=cuda), and use a LibTorch with CUDA"
          : "; link the library of this device into the program");
}

c10::Device with_index(const c10::Device& device) {
  if (device.is_cpu()) return c10::Device(c10::kCPU);
  if (device.has_index() || !has_streams(device)) return device;
  check_linked(device);
  return implementation(device).getDevice();
}

// Streams without an owner.
struct OwnedStream::Unused {
  std::mutex mutex;
  std::unordered_map<c10::Device, std::vector<c10::Stream>> streams;

  // Never destroyed, because a pipeline may live until the process exits.
  static Unused& get() {
    static auto* const unused = new Unused();
    return *unused;
  }
};

OwnedStream::OwnedStream(const c10::Device& device) {
  if (!has_streams(device)) return;
  Unused& unused = Unused::get();
  std::lock_guard<std::mutex> lock(unused.mutex);
  auto& streams = unused.streams[device];
  if (streams.empty()) {
    stream_ = implementation(device).getStreamFromGlobalPool(
        device, /*isHighPriority=*/false);
  } else {
    stream_ = streams.back();
    streams.pop_back();
  }
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : stream_(std::exchange(other.stream_, std::nullopt)) {}

OwnedStream::~OwnedStream() {
  if (!stream_) return;
  Unused& unused = Unused::get();
  std::lock_guard<std::mutex> lock(unused.mutex);
  unused.streams[stream_->device()].push_back(*stream_);
}

StreamScope::StreamScope(std::optional<c10::Stream> stream, Site site) {
  if (!stream || left_out(Ordering::kScope, site)) return;
  const auto guard = implementation(stream->device());
  outer_device_ = guard.exchangeDevice(stream->device());
  outer_stream_ = guard.exchangeStream(*stream);
}

StreamScope::~StreamScope() {
  if (!outer_stream_) return;
  const auto guard = implementation(outer_stream_->device());
  guard.exchangeStream(*outer_stream_);
  guard.uncheckedSetDevice(*outer_device_);
}

Event Event::record(const c10::Device& device, Site site) {
  Event moment;
  if (has_streams(device) && !left_out(Ordering::kEvent, site)) {
    moment.event_ = record_event(device, /*timed=*/false);
  }
  return moment;
}

void Event::wait(const c10::Device& device, Site site) const {
  if (!event_ || left_out(Ordering::kWait, site)) return;
  if (has_streams(device) && device.type() == event_->device_type()) {
    const c10::DeviceGuard on_device(device);  // see record_event()
    event_->block(current_stream(device));
  } else {
    event_->synchronize();
  }
}

void record_stream(const at::Tensor& tensor, const c10::Device& device,
                   Site site) {
  if (!tensor.defined() || !has_streams(tensor.device()) ||
      tensor.device() != device || left_out(Ordering::kRecord, site)) {
    return;
  }
  if (tensor.layout() == at::kSparse) {
    record_stream(tensor._indices(), device, site);
    record_stream(tensor._values(), device, site);
    return;
  }
  implementation(device).recordDataPtrOnStream(tensor.storage().data_ptr(),
                                               current_stream(device));
}

bool is_read_late(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.is_pinned();
}

}  // namespace gpipe::internal
