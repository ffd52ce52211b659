// Meta devices that differ by their index, and the memory that tensors on them
// would take.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::internal {

// ---- Meta devices that differ by their index.

// Returns the index of this thread's current meta device, or -1 (LibTorch's
// "meta") if no guard has set one.
//
// LibTorch knows one meta device. A program that links this target has any
// number of them. As with accelerators, each thread has a current meta device
// (c10::DeviceGuard), on which tensors are created, and a copy to another one
// is a new tensor.
//
//   const c10::DeviceGuard guard(c10::Device(c10::kMeta, 3));
//   at::empty({2}, at::kMeta).device();  // meta:3
//
// Some functions of LibTorch only accept "meta" and fail for a meta device with
// an index: arange(), linspace(), range(). So build modules without a guard and
// then move them.
c10::DeviceIndex current_meta_device();

// Returns the meta devices 0 to `count` - 1. Throws std::invalid_argument if
// LibTorch cannot number as many.
std::vector<c10::Device> meta_devices(int64_t count);

// Returns a tensor of any meta device on `device`, another one. (Without a
// guard, Tensor::to() puts it onto the current meta device.)
at::Tensor to_meta_device(const at::Tensor& tensor, const c10::Device& device);

// Returns the bytes of the elements, and of the indices of a sparse tensor; 0
// if `tensor` is undefined. Calls no operator, which a MetaScope would run with
// other tensors.
int64_t tensor_bytes(const at::Tensor& tensor);

}  // namespace gpipe::internal

namespace gpipe {

// ---- Counts the memory that meta tensors would take.

// Counts the memory of tensors on meta devices. It counts tensors that are made
// while the ledger is in scope: on this thread, or on threads that then work
// for it (those of a pipeline or of the autograd engine). A tensor counts until
// it is destroyed, on any thread. Ledgers may nest; only the innermost one
// counts. Sizes are the requested bytes, without the rounding of a device's
// allocator.
//
// A tensor counts as the kind of memory that MemoryKindScope has set when it is
// made, until label_memory() changes its kind: see
// runtime/device/memory_kind.h.
//
// Thread-safe.
class MetaLedger {
 public:
  // Bytes of each MemoryKind.
  using ByKind = std::array<int64_t, internal::kMemoryKinds>;

  MetaLedger();

  // Return the bytes of all devices together: the present ones, and the peak
  // since the ledger was made or reset_peaks() was called.
  int64_t live_bytes() const;
  int64_t peak_bytes() const;
  // Sets all peaks to the present bytes.
  void reset_peaks() const;

  // The bytes on one device (meta_devices()).
  struct Device {
    ByKind live{};
    int64_t peak = 0;
    ByKind at_peak{};            // by kind, when `peak` was first reached
    ByKind kind_peaks{};         // the peak of each kind, at different times
    int64_t transient_peak = 0;  // of kActivation and kBoundary together
  };
  Device of(c10::DeviceIndex device) const;

  struct Book;

 private:
  const std::shared_ptr<Book> book_;
  const c10::DebugInfoGuard guard_;  // cannot be copied
};

// Counts these tensors as MemoryKind::kParameter from now on: the parameters or
// buffers of a model. Thread-safe.
void count_as_parameters(const std::vector<at::Tensor>& tensors);

// A scope in which nothing on this thread is counted. For meta tensors that
// stand for tensors that already exist.
class MetaLedgerPause {
 public:
  MetaLedgerPause();

 private:
  const c10::DebugInfoGuard guard_;
};

}  // namespace gpipe
