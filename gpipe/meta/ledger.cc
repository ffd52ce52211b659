#include "gpipe/meta/ledger.h"

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <utility>

namespace gpipe {
namespace {

using Counts = MetaLedger::Counts;

std::shared_ptr<Counts>& current() {
  thread_local std::shared_ptr<Counts> counts;
  return counts;
}

// What a tensor has in the place of memory.
struct Entry {
  Entry(std::shared_ptr<Counts> counts_in, int64_t bytes_in)
      : counts(std::move(counts_in)), bytes(bytes_in) {
    const int64_t live = counts->live += bytes;
    int64_t peak = counts->peak;
    while (live > peak && !counts->peak.compare_exchange_weak(peak, live)) {
    }
  }
  ~Entry() { counts->live -= bytes; }

  const std::shared_ptr<Counts> counts;
  const int64_t bytes;
};

void remove(void* entry) { delete static_cast<Entry*>(entry); }

// LibTorch's own gives null pointers, and so does this one.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    Entry* const entry =
        current() ? new Entry(current(), static_cast<int64_t>(bytes)) : nullptr;
    return {nullptr, entry, &remove, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &remove; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

[[maybe_unused]] const bool installed = [] {
  static auto* const allocator = new CountingAllocator();
  c10::SetAllocator(c10::kMeta, allocator, /*priority=*/1);
  return true;
}();

}  // namespace

MetaLedger::MetaLedger()
    : counts_(std::make_shared<Counts>()),
      outer_(std::exchange(current(), counts_)) {}

MetaLedger::~MetaLedger() { current() = outer_; }

int64_t MetaLedger::live_bytes() const { return counts_->live; }

int64_t MetaLedger::peak_bytes() const { return counts_->peak; }

MetaLedgerPause::MetaLedgerPause()
    : outer_(std::exchange(current(), nullptr)) {}

MetaLedgerPause::~MetaLedgerPause() { current() = outer_; }

}  // namespace gpipe
