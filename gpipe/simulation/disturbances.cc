#include "gpipe/simulation/disturbances.h"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "gpipe/text/refuse.h"

namespace gpipe {
namespace {

using internal::refuse;

// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
// Generators", 2014): a bijection whose outputs look independent.
std::uint64_t mixed(std::uint64_t bits) {
  bits += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

// Returns a number above 0 and at most 1.
double unit(std::uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 1) * 0x1p-53;
}

// Returns whether `value` is finite and at least 0. False for NaN.
bool is_amount(double value) { return value >= 0 && std::isfinite(value); }

}  // namespace

void check_disturbances(const Disturbances& disturbances, std::size_t ranks) {
  const auto& factors = disturbances.rank_factors;
  if (!factors.empty() && factors.size() != ranks) {
    refuse("there are ", factors.size(), " rank_factors for ", ranks,
           " ranks: give one for each rank, or none");
  }
  for (std::size_t r = 0; r < factors.size(); ++r) {
    if (is_amount(factors[r]) && factors[r] > 0) continue;
    refuse("the factor of rank ", r, " is ", factors[r],
           ", but must be finite and above 0");
  }
  if (!is_amount(disturbances.jitter)) {
    refuse("the jitter is ", disturbances.jitter,
           ", but must be finite and at least 0");
  }
  const auto exists = [&](int rank) {
    return rank >= 0 && static_cast<std::size_t>(rank) < ranks;
  };
  for (const Outage& outage : disturbances.outages) {
    if (!exists(outage.from) || !exists(outage.to)) {
      refuse("an outage is from rank ", outage.from, " to rank ", outage.to,
             ", but there are ", ranks, " ranks");
    }
    if (!is_amount(outage.start) || !is_amount(outage.seconds)) {
      refuse("an outage starts at ", outage.start, " s and lasts ",
             outage.seconds, " s: both must be finite and at least 0");
    }
  }
}

namespace internal {

double jitter_factor(const Disturbances& disturbances, const Action& action) {
  if (disturbances.jitter == 0) return 1;
  const std::uint64_t cell =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(action.stage))
       << 32) |
      static_cast<std::uint32_t>(action.microbatch);
  const std::uint64_t first = mixed(mixed(mixed(disturbances.seed) ^ cell) ^
                                    static_cast<std::uint64_t>(action.kind));
  // A normal deviate (Box and Muller, 1958), then the log-normal of mean 1
  // whose standard deviation is `jitter`.
  const double normal = std::sqrt(-2 * std::log(unit(first))) *
                        std::cos(2 * std::numbers::pi * unit(mixed(first)));
  const double variance = std::log1p(disturbances.jitter * disturbances.jitter);
  return std::exp(std::sqrt(variance) * normal - variance / 2);
}

}  // namespace internal
}  // namespace gpipe
