// The sizes of skip tensors, for tools that describe a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "gpipe/skip/layout.h"
#include "gpipe/skip/skippable.h"

namespace gpipe::internal {

// A `Tracker`, which is a SkipTracker, that keeps the bytes of each tensor also
// after it was popped.
template <typename Tracker>
class SizingTracker : public Tracker {
 public:
  // Returns the bytes of a tensor.
  using Bytes = int64_t (*)(const at::Tensor&);

  explicit SizingTracker(Bytes bytes_of) : bytes_of_(bytes_of) {}

  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override {
    bytes_[key] = tensor ? bytes_of_(*tensor) : 0;
    Tracker::save(key, std::move(tensor));
  }

  // Returns the bytes of the tensor that was last stashed under `key`. Throws
  // c10::Error if none was.
  int64_t bytes(const SkipKey& key) const {
    const auto found = bytes_.find(key);
    if (found == bytes_.end()) Tracker::throw_not_stashed(key);
    return found->second;
  }

 private:
  const Bytes bytes_of_;
  std::map<SkipKey, int64_t> bytes_;
};

}  // namespace gpipe::internal
