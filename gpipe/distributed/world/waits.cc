#include "gpipe/distributed/world/waits.h"

#include <utility>

#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

constexpr std::size_t kEntry =
    sizeof(int32_t) + sizeof(int64_t) + sizeof(int32_t);

}  // namespace

int Waits::set_own(int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(known_[rank_].waits_for, rank);
}

void Waits::set_own(int from, int to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int32_t& own = known_[rank_].waits_for;
  if (own == from) own = to;
}

std::string Waits::encode(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++known_[rank_].version;
  std::string text;
  const auto add = [&](std::size_t rank) {
    const Known& known = known_[rank];
    put(text, static_cast<int32_t>(rank));
    put(text, known.version);
    put(text, known.waits_for);
  };
  add(rank_);  // always, because only this rank knows
  for (std::size_t k = 0; k < known_.size(); ++k) {
    if (text.size() + kEntry > bytes) break;
    const std::size_t rank = next_;
    next_ = (next_ + 1) % known_.size();
    const bool is_own = rank == static_cast<std::size_t>(rank_);
    if (!is_own && known_[rank].version > 0) add(rank);
  }
  return text;
}

void Waits::merge(const std::string& bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int size = static_cast<int>(known_.size());
  for (std::size_t at = 0; at + kEntry <= bytes.size();) {
    const auto rank = take<int32_t>(bytes, at);
    const auto version = take<int64_t>(bytes, at);
    const auto waits_for = take<int32_t>(bytes, at);
    if (rank < 0 || rank >= size || rank == rank_) continue;
    if (waits_for < -1 || waits_for >= size) continue;
    if (version > known_[rank].version) known_[rank] = {version, waits_for};
  }
}

int Waits::end_of_chain(int rank) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int end = rank;
  for (std::size_t steps = 0; steps < known_.size(); ++steps) {
    const int next = known_[end].waits_for;
    if (next < 0) return end;
    end = next;
  }
  return rank;
}

}  // namespace gpipe::internal
