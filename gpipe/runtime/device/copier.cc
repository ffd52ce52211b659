#include "gpipe/runtime/device/copier.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::internal {
namespace {

// Each storage begins at a multiple of this many bytes of its buffer.
constexpr std::size_t kAlignment = 256;

at::Tensor bytes_on(const c10::Device& device, std::size_t size, bool pinned) {
  return at::empty(
      {static_cast<int64_t>(size)},
      at::TensorOptions().dtype(at::kByte).device(device).pinned_memory(
          pinned));
}

// Returns all bytes of `storage` as a tensor. (Tensor::set_ has no kernel on
// some devices.)
at::Tensor bytes_of(const c10::Storage& storage) {
  at::Tensor bytes = bytes_on(storage.device(), 0, /*pinned=*/false);
  c10::TensorImpl* const impl = bytes.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  impl->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
  return bytes;
}

at::Tensor part(const at::Tensor& bytes, std::size_t offset, std::size_t size) {
  return bytes.narrow(0, static_cast<int64_t>(offset),
                      static_cast<int64_t>(size));
}

// Blocks the host until `event` has happened.
void wait_on_host(const Event& event) { event.wait(c10::Device(c10::kCPU)); }

}  // namespace

bool has_own_memory(const c10::Device& device) { return !device.is_cpu(); }

HostBuffers::Buffer HostBuffers::take(const std::shared_ptr<HostBuffers>& self,
                                      std::size_t bytes) {
  at::Tensor memory = self->take_unused(bytes);
  if (!memory.defined()) {
    memory = bytes_on(c10::Device(c10::kCPU), bytes, self->pinned_);
  }
  const auto size = static_cast<std::size_t>(memory.numel());
  Buffer buffer(new at::Tensor(std::move(memory)), [self](at::Tensor* used) {
    const auto size = static_cast<std::size_t>(used->numel());
    std::lock_guard<std::mutex> lock(self->mutex_);
    self->in_use_ -= size;
    self->unused_.emplace(size, std::move(*used));
    delete used;
  });
  std::lock_guard<std::mutex> lock(self->mutex_);
  self->in_use_ += size;
  self->most_in_use_ = std::max(self->most_in_use_, self->in_use_);
  return buffer;
}

at::Tensor HostBuffers::take_unused(std::size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = unused_.lower_bound(bytes);
  if (found != unused_.end() && found->first <= 2 * bytes) {
    return std::move(unused_.extract(found).mapped());
  }
  // Sizes that grow would else leave a buffer of each size. A copy to a device
  // may still read one. LibTorch's allocator of pinned memory uses that memory
  // again after the copy.
  std::size_t held = 0;
  for (const auto& [size, buffer] : unused_) held += size;
  while (held > std::max(most_in_use_, in_use_ + bytes)) {
    held -= unused_.begin()->first;
    unused_.erase(unused_.begin());
  }
  return {};
}

Copier::Copier(c10::Device device)
    : device_(device),
      buffers_(std::make_shared<HostBuffers>(has_streams(device))) {}

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

const std::optional<c10::Stream>& Copier::use(
    std::optional<OwnedStream>& stream) {
  if (!stream) stream.emplace(device_);
  return stream->get();
}

Event Copier::run_copy(std::optional<OwnedStream>& stream,
                       const OnHost& on_host,
                       const std::vector<c10::Storage>& storages, bool away,
                       Times* times) {
  // New memory may have belonged to earlier work of the current stream.
  const Event made = Event::record(device_);
  const StreamScope on_copy_stream(use(stream));
  made.wait(device_);
  if (times) times->start = Stamp::now(device_);
  try {
    for (std::size_t k = 0; k < storages.size() && !device_.is_meta(); ++k) {
      const at::Tensor here = bytes_of(storages[k]);
      const at::Tensor there =
          part(*on_host.buffer_, on_host.offsets_[k], on_host.sizes_[k]);
      (away ? there : here).copy_(away ? here : there, /*non_blocking=*/true);
    }
    if (times) times->end = Stamp::now(device_);
    return Event::record(device_);
  } catch (...) {
    // The copies that have begun still use the memory, which is given back now.
    if (use(stream)) use(stream)->synchronize();
    throw;
  }
}

Copier::OnHost Copier::to_host(std::vector<c10::Storage> storages,
                               Times* times) {
  finish();
  OnHost result;
  result.number_ = ++number_;
  std::size_t total = 0;
  for (const c10::Storage& storage : storages) {
    result.offsets_.push_back(total);
    result.sizes_.push_back(storage.nbytes());
    total += (storage.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (!device_.is_meta()) result.buffer_ = HostBuffers::take(buffers_, total);
  reading_ = std::move(storages);
  copied_ = run_copy(to_host_, result, reading_, /*away=*/true, times);
  return result;
}

void Copier::release() {
  if (reading_.empty()) return;
  const StreamScope on_copy_stream(use(to_host_));
  for (const c10::Storage& storage : reading_) {
    record_stream(bytes_of(storage), device_);
  }
  reading_.clear();
}

std::vector<c10::Storage> Copier::from_host(const OnHost& on_host, Event* ready,
                                            Times* times) {
  if (on_host.number_ == number_) {
    finish();
  } else {
    release();
  }
  std::vector<c10::Storage> storages;
  storages.reserve(on_host.sizes_.size());
  for (const std::size_t size : on_host.sizes_) {
    storages.push_back(bytes_on(device_, size, /*pinned=*/false).storage());
  }
  *ready = run_copy(from_host_, on_host, storages, /*away=*/false, times);
  return storages;
}

void Copier::finish() {
  wait_on_host(copied_);
  copied_ = Event();
  reading_.clear();
}

namespace {

// Returns `values` as words of 64 bits that hold them without loss.
at::Tensor words_of(const at::Tensor& values) {
  return values.is_floating_point() ? values.to(at::kDouble).view(at::kLong)
                                    : values.to(at::kLong);
}

}  // namespace

std::vector<at::Tensor> scalars_on_host(
    const std::vector<at::Tensor>& scalars) {
  const c10::AutoGradMode no_graph(false);
  std::vector<at::Tensor> result(scalars.size());
  std::unordered_map<c10::Device,
                     std::map<at::ScalarType, std::vector<std::size_t>>>
      on_device;
  for (std::size_t k = 0; k < scalars.size(); ++k) {
    result[k] = scalars[k].detach().reshape({});
    if (result[k].is_cpu()) continue;
    on_device[result[k].device()][result[k].scalar_type()].push_back(k);
  }
  for (const auto& [device, by_type] : on_device) {
    std::vector<at::Tensor> words;
    for (const auto& [type, places] : by_type) {
      std::vector<at::Tensor> alike;
      for (const std::size_t k : places) alike.push_back(result[k]);
      words.push_back(words_of(at::stack(alike)));
    }
    const at::Tensor here =
        (words.size() == 1 ? words[0] : at::cat(words)).cpu();
    int64_t word = 0;
    for (const auto& [type, places] : by_type) {
      const auto count = static_cast<int64_t>(places.size());
      at::Tensor values = here.narrow(0, word, count);
      if (c10::isFloatingType(type)) values = values.view(at::kDouble);
      values = values.to(type);
      for (int64_t n = 0; n < count; ++n) {
        result[places[static_cast<std::size_t>(n)]] = values[n];
      }
      word += count;
    }
  }
  return result;
}

std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars) {
  std::vector<double> values;
  values.reserve(scalars.size());
  for (const at::Tensor& each : scalars_on_host(scalars)) {
    values.push_back(each.item<double>());
  }
  return values;
}

}  // namespace gpipe::internal
