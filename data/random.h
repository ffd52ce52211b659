// Random numbers that are the same with every compiler and number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe::data {

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): one word of state, so that each
// image can have a generator of its own. The standard's distributions differ
// between libraries, hence uniform() and below().
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  // In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) {
    return low + (high - low) * uniform();
  }

  // In [0, n), n > 0.
  int64_t below(int64_t n) {
    return std::min(static_cast<int64_t>(uniform() * static_cast<double>(n)),
                    n - 1);
  }

 private:
  uint64_t state_;
};

// A seed for (a, b) under `seed`: an image's in an epoch, say.
inline uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b = 0) {
  Random random(seed);
  random = Random(random.next() ^ a);
  random = Random(random.next() ^ b);
  return random.next();
}

// 0, 1, ..., n - 1 in an order of its own for every seed.
inline std::vector<int64_t> permutation(int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) order[i] = i;
  Random random(seed);
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[i], order[random.below(i + 1)]);
  }
  return order;
}

}  // namespace gpipe::data
