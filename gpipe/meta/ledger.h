// What tensors without memory would take.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "gpipe/runtime/memory_kind.h"

namespace gpipe {

// Counts the memory of tensors on the meta devices that are made on this thread
// while the ledger is in scope, or on threads that work for it meanwhile (those
// of a pipeline, of the autograd engine), until each is gone, on whatever
// thread. Ledgers may nest; the innermost counts. Bytes are those that a tensor
// asks for, without the rounding of a device's allocator.
//
// What is counted is of the kind that its maker is at (MemoryKindScope), until
// it is told another one by label_memory(): see runtime/memory_kind.h.
//
// Threads: all functions from any.
class MetaLedger {
 public:
  // Bytes of each MemoryKind.
  using ByKind = std::array<int64_t, kMemoryKinds>;

  MetaLedger();
  ~MetaLedger();
  MetaLedger(const MetaLedger&) = delete;
  MetaLedger& operator=(const MetaLedger&) = delete;

  // Of all devices together: now, and the most at any one time since the
  // ledger was made or reset_peaks() was called.
  int64_t live_bytes() const;
  int64_t peak_bytes() const;
  void reset_peaks() const;

  // Of one of the devices (meta/devices.h).
  struct Device {
    ByKind live{};
    int64_t peak = 0;
    ByKind at_peak{};     // what `peak` was made of; the first time
    ByKind kind_peaks{};  // of each kind for itself, at times of their own
    int64_t transient_peak = 0;  // of kActivation and kBoundary together
  };
  Device of(c10::DeviceIndex device) const;

  struct Book;

 private:
  const std::shared_ptr<Book> book_;
  const c10::DebugInfoGuard guard_;
};

// While in scope, nothing is counted on this thread: for what stands for memory
// that is there already.
class MetaLedgerPause {
 public:
  MetaLedgerPause();
  ~MetaLedgerPause();
  MetaLedgerPause(const MetaLedgerPause&) = delete;
  MetaLedgerPause& operator=(const MetaLedgerPause&) = delete;

 private:
  const c10::DebugInfoGuard guard_;
};

}  // namespace gpipe
