#include "gpipe/runtime/device/stream.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace gpipe::internal {
namespace {

// Objects that are used again, by key. Thread-safe. A pool is never destroyed,
// because static objects may keep what is from it, a pipeline may live until
// the process exits, and the device may be gone then.
template <typename Key, typename T>
class Pool {
 public:
  // Returns an unused object, or that of make() if there is none.
  template <typename Make>
  T take(const Key& key, Make make) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& unused = unused_[key];
      if (!unused.empty()) {
        T object = std::move(unused.back());
        unused.pop_back();
        return object;
      }
    }
    return make();
  }

  void give_back(const Key& key, T object) {
    std::lock_guard<std::mutex> lock(mutex_);
    unused_[key].push_back(std::move(object));
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::vector<T>> unused_;
};

// Device and whether the event has a time. LibTorch binds an event to the
// device on which it is first recorded.
using EventKey = std::tuple<c10::DeviceType, c10::DeviceIndex, bool>;

auto& events() {
  static auto* const pool = new Pool<EventKey, std::unique_ptr<c10::Event>>();
  return *pool;
}

// Streams without an owner.
auto& streams() {
  static auto* const pool =
      new Pool<std::pair<c10::DeviceType, c10::DeviceIndex>, c10::Stream>();
  return *pool;
}

c10::impl::VirtualGuardImpl implementation(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

c10::Stream current_stream(const c10::Device& device) {
  return implementation(device).getStream(device);
}

// Blocks the host until `event` has happened.
void wait_on_host(const c10::Event& event) {
  const c10::DeviceGuard on_device(event.device());  // see record_event()
  event.synchronize();
}

}  // namespace

std::shared_ptr<c10::Event> record_event(const c10::Device& device,
                                         bool timed) {
  // Without this guard LibTorch would set the thread's device of before, in a
  // way that makes a context on it (300 MB of a GPU that may belong to another
  // process). A wait of the host may make one on the thread's device, too.
  const c10::DeviceGuard on_device(device);
  const EventKey key(device.type(), device.index(), timed);
  auto unused = events().take(key, [&] {
    // LibTorch's default flag makes events without times.
    return std::make_unique<c10::Event>(
        device.type(), timed ? c10::EventFlag::BACKEND_DEFAULT
                             : c10::EventFlag::PYTORCH_DEFAULT);
  });
  std::shared_ptr<c10::Event> event(unused.release(), [key](c10::Event* used) {
    events().give_back(key, std::unique_ptr<c10::Event>(used));
  });
  event->record(current_stream(device));
  return event;
}

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

OwnedStream::OwnedStream(const c10::Device& device) {
  if (!has_streams(device)) return;
  stream_ = streams().take({device.type(), device.index()}, [&] {
    return implementation(device).getStreamFromGlobalPool(
        device, /*isHighPriority=*/false);
  });
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : stream_(std::exchange(other.stream_, std::nullopt)) {}

OwnedStream::~OwnedStream() {
  if (!stream_) return;
  streams().give_back({stream_->device_type(), stream_->device_index()},
                      *stream_);
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
    wait_on_host(*event_);
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
  const at::Layout layout = tensor.layout();
  const bool by_rows = layout == at::kSparseCsr || layout == at::kSparseBsr;
  if (by_rows || layout == at::kSparseCsc || layout == at::kSparseBsc) {
    for (const at::Tensor& each :
         {by_rows ? tensor.crow_indices() : tensor.ccol_indices(),
          by_rows ? tensor.col_indices() : tensor.row_indices(),
          tensor.values()}) {
      record_stream(each.detach(), device, site);
    }
    return;
  }
  implementation(device).recordDataPtrOnStream(tensor.storage().data_ptr(),
                                               current_stream(device));
}

bool is_read_late(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.is_pinned();
}

Stamp Stamp::now(const c10::Device& device) {
  Stamp stamp;
  if (has_streams(device)) {
    stamp.event_ = record_event(device, /*timed=*/true);
  } else {
    stamp.time_ = std::chrono::steady_clock::now();
  }
  return stamp;
}

void Stamp::wait() const {
  if (event_) wait_on_host(*event_);
}

double Stamp::seconds_since(const Stamp& start) const {
  if (event_) {
    start.wait();
    wait();
    constexpr double kMilliseconds = 1e-3;
    const c10::DeviceGuard on_device(event_->device());  // see record_event()
    return kMilliseconds * start.event_->elapsedTime(*event_);
  }
  return std::chrono::duration<double>(time_ - start.time_).count();
}

int share_of_threads(const std::vector<c10::Device>& devices) {
  const auto on_cpu = std::ranges::count_if(
      devices, [](const c10::Device& device) { return device.is_cpu(); });
  return std::max(
      1, at::get_num_threads() / std::max(1, static_cast<int>(on_cpu)));
}

}  // namespace gpipe::internal
