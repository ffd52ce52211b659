// Values that depend on sizes and constant buffers only, kept between steps.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "models/exported/program.h"

namespace gpipe::exported {

// What a constant value depends on: the device and its stream, the autocast
// state, sizes, and versions of buffers.
using ConstantKey = std::vector<int64_t>;

// The constant values of one model, for all its layers. A mask or a table of
// positions that several layers use is kept once per device and sizes.
// Thread-safe.
class ConstantCache {
 public:
  // Returns the value `id` for `key`; none() if it is not there.
  c10::IValue find(ValueId id, const ConstantKey& key);
  // Keeps a value. Forgets the oldest one of `id` if there are more than
  // kMost.
  void insert(ValueId id, ConstantKey key, c10::IValue value);

 private:
  // Devices, times the two sizes of micro-batches that a split gives.
  static constexpr std::size_t kMost = 32;

  std::mutex mutex_;
  std::map<ValueId, std::vector<std::pair<ConstantKey, c10::IValue>>> values_;
};

}  // namespace gpipe::exported
