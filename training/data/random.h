// Random numbers that do not depend on the compiler or the number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe::data {

// A SplitMix64 generator (Steele, Lea, Flood, OOPSLA 2014). It has one word of
// state, so each image can have a generator of its own. The distributions of
// the standard differ between libraries, so uniform() and below() replace them.
// Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // Returns 64 random bits.
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  // Returns a number in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Returns a number between `low` and `high`.
  double uniform(double low, double high) {
    return low + (high - low) * uniform();
  }

  // Returns a number in [0, n), with n > 0.
  int64_t below(int64_t n) {
    return std::min(static_cast<int64_t>(uniform() * static_cast<double>(n)),
                    n - 1);
  }

 private:
  uint64_t state_;
};

// Returns a seed for (a, b) under `seed`, for example for an image in an epoch.
inline uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b = 0) {
  Random random(seed);
  random = Random(random.next() ^ a);
  random = Random(random.next() ^ b);
  return random.next();
}

// Returns 0, 1, ..., n - 1 in a random order that depends only on `seed`.
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
