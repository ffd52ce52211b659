#include "gpipe/meta/ledger.h"

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <utility>

namespace gpipe {
namespace {

using Counts = MetaLedger::Counts;

// LibTorch hands this kind of information over to threads that work for a
// thread. The kind is one that it has no use for itself.
constexpr auto kKind = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;

struct LedgerInfo : c10::DebugInfoBase {
  explicit LedgerInfo(std::shared_ptr<Counts> counts_in)
      : counts(std::move(counts_in)) {}
  const std::shared_ptr<Counts> counts;  // null: nothing is counted
};

std::shared_ptr<Counts> current() {
  const auto* info =
      dynamic_cast<LedgerInfo*>(c10::ThreadLocalDebugInfo::get(kKind));
  return info ? info->counts : nullptr;
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
    auto counts = current();
    Entry* const entry =
        counts ? new Entry(std::move(counts), static_cast<int64_t>(bytes))
               : nullptr;
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
      guard_(kKind, std::make_shared<LedgerInfo>(counts_)) {}

MetaLedger::~MetaLedger() = default;

int64_t MetaLedger::live_bytes() const { return counts_->live; }

int64_t MetaLedger::peak_bytes() const { return counts_->peak; }

MetaLedgerPause::MetaLedgerPause()
    : guard_(kKind, std::make_shared<LedgerInfo>(nullptr)) {}

MetaLedgerPause::~MetaLedgerPause() = default;

}  // namespace gpipe
