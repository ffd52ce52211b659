// Measurements in turn, so that other work on the machine affects all of them
// equally.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace gpipe::benchmarks {

// The rounds of a measurement.
struct Rounds {
  int64_t count = 0;
  int64_t warm_up = 1;  // number of rounds before them, which do not count
  // If true, every other round runs the steps from the last to the first, since
  // a later step may find warmer caches.
  bool alternate = false;
};

// Runs each of `steps` once per round, one after the other, and returns their
// results by step and round, without those of the warm-up.
template <typename Result>
std::vector<std::vector<Result>> interleaved_rounds(
    const Rounds& rounds, const std::vector<std::function<Result()>>& steps) {
  std::vector<std::vector<Result>> results(steps.size());
  for (int64_t round = -rounds.warm_up; round < rounds.count; ++round) {
    const bool reversed = rounds.alternate && round % 2 == 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::size_t k = reversed ? steps.size() - 1 - i : i;
      Result result = steps[k]();
      if (round >= 0) results[k].push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace gpipe::benchmarks
