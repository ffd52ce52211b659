// What tensors without memory would take.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace gpipe {

// Counts the memory of tensors on the meta device that are made on this thread
// while the ledger is in scope, or on threads that work for it meanwhile (those
// of a pipeline, of the autograd engine), until each is gone, on whatever
// thread. Ledgers may nest; the innermost counts. Bytes are those that a tensor
// asks for, without the rounding of a device's allocator.
class MetaLedger {
 public:
  MetaLedger();
  ~MetaLedger();
  MetaLedger(const MetaLedger&) = delete;
  MetaLedger& operator=(const MetaLedger&) = delete;

  int64_t live_bytes() const;
  // The most at any one time since the ledger was made.
  int64_t peak_bytes() const;

  struct Counts {
    std::atomic<int64_t> live{0}, peak{0};
  };

 private:
  const std::shared_ptr<Counts> counts_;
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
