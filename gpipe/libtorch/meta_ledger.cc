#include "gpipe/libtorch/meta_ledger.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/resize_meta_dispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "gpipe/base/text.h"
#include "gpipe/libtorch/debug_info.h"
#include "gpipe/libtorch/dispatcher.h"

namespace gpipe::internal {
namespace {

thread_local c10::DeviceIndex current = -1;

// Replaces LibTorch's own guard for meta devices, which ignores the index.
struct MetaGuardImpl final
    : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::Meta> {
  explicit MetaGuardImpl(const c10::impl::DeviceGuardImplInterface* replaced)
      : replaced(replaced) {}
  c10::Device getDevice() const override { return {c10::kMeta, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kMeta, std::exchange(current, device.index())};
  }
  void setDevice(c10::Device device) const override {
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current = device.index();
  }
  // Kept reachable, so leak checkers do not report it.
  const c10::impl::DeviceGuardImplInterface* const replaced;
};

[[maybe_unused]] const bool guard_registered = [] {
  if (!claim(kMetaKey, "devices")) return false;
  auto& entry = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(
      c10::kMeta)];
  entry = new MetaGuardImpl(entry.load());
  return true;
}();

}  // namespace

c10::DeviceIndex current_meta_device() { return current; }

std::vector<c10::Device> meta_devices(int64_t count) {
  constexpr int64_t kMost = std::numeric_limits<c10::DeviceIndex>::max() + 1;
  if (count > kMost) {
    refuse("a dry run of ", count, " partitions: LibTorch can number at most ",
           kMost, " devices");
  }
  std::vector<c10::Device> devices;
  for (int64_t index = 0; index < count; ++index) {
    devices.emplace_back(c10::kMeta, static_cast<c10::DeviceIndex>(index));
  }
  return devices;
}

at::Tensor to_meta_device(const at::Tensor& tensor, const c10::Device& device) {
  const c10::DeviceGuard guard(device);
  return tensor.to(device);
}

int64_t tensor_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  if (!tensor.is_sparse()) return static_cast<int64_t>(tensor.nbytes());
  const auto* const sparse =
      static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
  return tensor_bytes(sparse->indices()) + tensor_bytes(sparse->values());
}

}  // namespace gpipe::internal

namespace gpipe {

// The counts of a ledger. Lives as long as its last tensor.
struct MetaLedger::Book {
  std::mutex mutex;
  int64_t live = 0, peak = 0;
  std::map<c10::DeviceIndex, Device> devices;

  // Adds `bytes`, which may be negative. The caller must hold `mutex`.
  void add(c10::DeviceIndex index, internal::MemoryKind kind, int64_t bytes) {
    Device& device = devices[index];
    const auto k = static_cast<std::size_t>(kind);
    device.live[k] += bytes;
    device.kind_peaks[k] = std::max(device.kind_peaks[k], device.live[k]);
    device.transient_peak =
        std::max(device.transient_peak, transient(device.live));
    const int64_t on_device = total(device.live);
    if (on_device > device.peak) {
      device.peak = on_device;
      device.at_peak = device.live;
    }
    live += bytes;
    peak = std::max(peak, live);
  }

  static int64_t transient(const ByKind& bytes) {
    return bytes[static_cast<std::size_t>(internal::MemoryKind::kActivation)] +
           bytes[static_cast<std::size_t>(internal::MemoryKind::kBoundary)];
  }
  static int64_t total(const ByKind& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  }
};

namespace {

using Book = MetaLedger::Book;

struct LedgerInfo : c10::DebugInfoBase {
  explicit LedgerInfo(std::shared_ptr<Book> book_in)
      : book(std::move(book_in)) {}
  const std::shared_ptr<Book> book;  // null: nothing is counted
};

std::shared_ptr<Book> current() {
  const auto* info = dynamic_cast<LedgerInfo*>(
      c10::ThreadLocalDebugInfo::get(internal::kLedgerSlot));
  return info ? info->book : nullptr;
}

// Stands for the memory of one tensor: counts it until destroyed.
class Entry {
 public:
  Entry(std::shared_ptr<Book> book, c10::DeviceIndex device, int64_t bytes)
      : book_(std::move(book)),
        device_(device),
        bytes_(bytes),
        kind_(internal::MemoryKindScope::current()) {
    const std::lock_guard<std::mutex> lock(book_->mutex);
    book_->add(device_, kind_, bytes_);
  }
  ~Entry() {
    const std::lock_guard<std::mutex> lock(book_->mutex);
    book_->add(device_, kind_, -bytes_);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // Does nothing if the memory has not grown. Otherwise the old and the new
  // block exist at the same time, as while a CPU copies between them.
  void grow(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(book_->mutex);
    if (bytes <= bytes_) return;
    book_->add(device_, kind_, bytes);
    book_->add(device_, kind_, -bytes_);
    bytes_ = bytes;
  }
  void become(internal::MemoryKind kind) {
    const std::lock_guard<std::mutex> lock(book_->mutex);
    book_->add(device_, kind_, -bytes_);
    book_->add(device_, kind, bytes_);
    kind_ = kind;
  }

 private:
  const std::shared_ptr<Book> book_;
  const c10::DeviceIndex device_;
  int64_t bytes_;
  internal::MemoryKind kind_;
};

void remove(void* entry) { delete static_cast<Entry*>(entry); }

// Returns null pointers, as LibTorch's allocator for the meta device does.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex device = internal::current_meta_device();
    auto book = current();
    Entry* const entry =
        book ? new Entry(std::move(book), device, static_cast<int64_t>(bytes))
             : nullptr;
    return {nullptr, entry, &remove, c10::Device(c10::kMeta, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &remove; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

// Returns null for memory that is not counted.
Entry* entry_of(const at::Tensor& tensor) {
  if (!tensor.is_meta() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  if (memory.get_deleter() != &remove) return nullptr;
  return static_cast<Entry*>(memory.get_context());
}

void label(const at::Tensor& tensor, internal::MemoryKind kind) {
  if (Entry* const entry = entry_of(tensor)) entry->become(kind);
}

// Kernel of aten::resize_ in place of LibTorch's, which calls no allocator.
const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef sizes,
                         std::optional<at::MemoryFormat> format) {
  at::meta::resize__symint(tensor, sizes, format);
  if (Entry* const entry = entry_of(tensor)) {
    entry->grow(static_cast<int64_t>(tensor.storage().nbytes()));
  }
  return tensor;
}

[[maybe_unused]] const bool installed = [] {
  if (!internal::claim(internal::kMetaKey, "ledger")) return false;
  static auto* const allocator = new CountingAllocator();
  c10::SetAllocator(c10::kMeta, allocator, /*priority=*/1);
  internal::on_label(&label);
  internal::keep_registered(c10::Dispatcher::singleton().registerImpl(
      {"aten::resize_", ""}, c10::DispatchKey::Meta,
      c10::KernelFunction::makeFromUnboxedRuntimeFunction(&resize),
      /*cpp_signature=*/std::nullopt, /*inferred_function_schema=*/nullptr,
      "gpipe: memory on the meta device"));
  return true;
}();

}  // namespace

MetaLedger::MetaLedger()
    : book_(std::make_shared<Book>()),
      guard_(internal::kLedgerSlot, std::make_shared<LedgerInfo>(book_)) {
  internal::check_claimed(internal::kMetaKey);
}

int64_t MetaLedger::live_bytes() const {
  const std::lock_guard<std::mutex> lock(book_->mutex);
  return book_->live;
}

int64_t MetaLedger::peak_bytes() const {
  const std::lock_guard<std::mutex> lock(book_->mutex);
  return book_->peak;
}

void MetaLedger::reset_peaks() const {
  const std::lock_guard<std::mutex> lock(book_->mutex);
  book_->peak = book_->live;
  for (auto& [index, device] : book_->devices) {
    device.peak = Book::total(device.live);
    device.at_peak = device.kind_peaks = device.live;
    device.transient_peak = Book::transient(device.live);
  }
}

MetaLedger::Device MetaLedger::of(c10::DeviceIndex device) const {
  const std::lock_guard<std::mutex> lock(book_->mutex);
  const auto found = book_->devices.find(device);
  return found == book_->devices.end() ? Device() : found->second;
}

void count_as_parameters(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& each : tensors) {
    internal::label_memory(each, internal::MemoryKind::kParameter);
  }
}

MetaLedgerPause::MetaLedgerPause()
    : guard_(internal::kLedgerSlot, std::make_shared<LedgerInfo>(nullptr)) {}

}  // namespace gpipe
