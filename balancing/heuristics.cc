#include "balancing/heuristics.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace gpipe::balancing {
namespace {

constexpr int64_t kRandomCases = 10000;

constexpr int kResnet101[] = {
#include "balancing/data/resnet101_costs.inc"
};
constexpr int kAmoebanetd[] = {
#include "balancing/data/amoebanetd_costs.inc"
};
constexpr int kUnet[] = {
#include "balancing/data/unet_costs.inc"
};

struct ProfileRow {
  const char* model;
  int64_t partitions;
  std::array<int64_t, kHeuristics.size()> bottlenecks;
};
constexpr ProfileRow kProfiles[] = {
#include "balancing/data/profiles.inc"
};

// One row per heuristic of kHeuristics.
constexpr int kRandom[kHeuristics.size()][kRandomCases] = {
    {
#include "balancing/data/random_torchgpipe.inc"
    },
    {
#include "balancing/data/random_deepspeed_0_9.inc"
    },
    {
#include "balancing/data/random_deepspeed_0_19.inc"
    },
};

std::vector<double> costs_of(const std::string& model) {
  if (model == "ResNet-101") {
    return {std::begin(kResnet101), std::end(kResnet101)};
  }
  if (model == "AmoebaNet-D") {
    return {std::begin(kAmoebanetd), std::end(kAmoebanetd)};
  }
  return {std::begin(kUnet), std::end(kUnet)};
}

// splitmix64. The generators of the standard library are portable, but its
// distributions are not, and Python has none of these generators.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Small: costs 0 to 9. Heavy: costs 4096 / u for u in 1 to 4096, so that one of
// k layers costs about k times the minimum. Mixed: an eighth of the layers is
// heavy.
constexpr const char* kKinds[] = {"random, small", "random, mixed",
                                  "random, heavy"};

}  // namespace

const uint64_t kRandomChecksum =
#include "balancing/data/random_checksum.inc"
    ;

std::vector<RecordedCase> recorded_profiles() {
  std::vector<RecordedCase> cases;
  for (const ProfileRow& row : kProfiles) {
    cases.push_back(
        {row.model, costs_of(row.model), row.partitions, row.bottlenecks});
  }
  return cases;
}

std::vector<RecordedCase> recorded_random() {
  std::vector<RecordedCase> cases(kRandomCases);
  Random random(1);
  for (int64_t i = 0; i < kRandomCases; ++i) {
    RecordedCase& one = cases[i];
    const int64_t kind = i % 3;
    one.set = kKinds[kind];
    one.costs.resize(8 + random.next() % 57);
    one.partitions = static_cast<int64_t>(2 + random.next() % 7);
    for (double& cost : one.costs) {
      const uint64_t bits = random.next();
      const bool heavy = kind == 2 || (kind == 1 && bits % 8 == 0);
      // The low bits have been used.
      const uint64_t rest = bits >> 8;
      cost = static_cast<double>(heavy ? 4096 / (1 + rest % 4096) : rest % 10);
    }
    for (std::size_t j = 0; j < kHeuristics.size(); ++j) {
      one.bottlenecks[j] = kRandom[j][i];
    }
  }
  return cases;
}

uint64_t checksum(const std::vector<RecordedCase>& cases) {
  uint64_t sum = 0xCBF29CE484222325;
  const auto mix = [&](uint64_t number) {
    sum = (sum ^ number) * 0x100000001B3;
  };
  for (const RecordedCase& one : cases) {
    mix(one.costs.size());
    mix(one.partitions);
    for (double cost : one.costs) mix(static_cast<uint64_t>(cost));
  }
  return sum;
}

}  // namespace gpipe::balancing
