// Counts the memory that meta tensors would take.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe {

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

  // The bytes on one device (meta/devices.h).
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
