#include "models/exported/constant_cache.h"

namespace gpipe::exported {

c10::IValue ConstantCache::find(ValueId id, const ConstantKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [known, value] : values_[id]) {
    if (known == key) return value;
  }
  return {};
}

void ConstantCache::insert(ValueId id, ConstantKey key, c10::IValue value) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& list = values_[id];
  if (list.size() >= kMost) list.erase(list.begin());
  list.emplace_back(std::move(key), std::move(value));
}

}  // namespace gpipe::exported
