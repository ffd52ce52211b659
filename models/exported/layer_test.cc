#include "models/exported/layer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace gpipe::exported {
namespace {

// Returns the key of a value on a stream of the first device, without autocast.
ConstantKey key_of(int64_t stream, int64_t size) {
  return {0, 0, stream, -1, size};
}

// Each call of a generation without a cache has another size.
TEST(ConstantCacheTest, KeepsTheNewestFourSizesOfEachStream) {
  ConstantCache cache;
  const ConstantCache::Id id(3, -1), other(4, -1);
  std::vector<at::Tensor> values;
  cache.insert(other, key_of(0, 1), 7);
  for (int64_t size = 1; size <= 6; ++size) {
    for (const int64_t stream : {0, 1}) {
      values.push_back(at::full({size}, stream));
      cache.insert(id, key_of(stream, size), values.back());
    }
  }
  for (std::size_t k = 0; k < values.size(); ++k) {
    const bool is_kept = k >= 4;
    EXPECT_EQ(values[k].use_count(), is_kept ? 2u : 1u) << k;
    const c10::IValue found =
        cache.find(id, key_of(static_cast<int64_t>(k % 2), values[k].size(0)));
    EXPECT_EQ(found.isTensor() && found.toTensor().is_same(values[k]), is_kept)
        << k;
  }
  EXPECT_EQ(cache.find(other, key_of(0, 1)).toInt(), 7);
}

TEST(ConstantCacheTest, KeepsTheNewestOnesOfAllStreams) {
  ConstantCache cache;
  const ConstantCache::Id id(3, -1);
  for (int64_t stream = 0; stream < 33; ++stream) {
    cache.insert(id, key_of(stream, 1), stream);
  }
  EXPECT_TRUE(cache.find(id, key_of(0, 1)).isNone());
  for (int64_t stream = 1; stream < 33; ++stream) {
    EXPECT_EQ(cache.find(id, key_of(stream, 1)).toInt(), stream);
  }
}

}  // namespace
}  // namespace gpipe::exported
