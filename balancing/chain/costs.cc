#include "balancing/chain/costs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

namespace gpipe::balancing::detail {
namespace {

constexpr int kNothing = std::numeric_limits<int>::min() / 4;

// Returns the smallest e with value < 2^e; a very small number for 0.
int bits(double value) {
  if (value == 0) return kNothing;
  int exponent = 0;
  std::frexp(value, &exponent);
  return exponent;
}

int bits(std::size_t value) { return bits(static_cast<double>(value)); }

}  // namespace

SkipsByPop::SkipsByPop(const Chain& chain)
    : skips(chain.skips), begin(chain.layers.size() + 1, 0) {
  std::ranges::stable_sort(skips, {}, &ChainSkip::popped_by);
  for (const ChainSkip& skip : skips) ++begin[skip.popped_by + 1];
  for (std::size_t k = 1; k < begin.size(); ++k) begin[k] += begin[k - 1];
}

ChainCosts::ChainCosts(const Chain& chain) : chain_(chain), skips_(chain) {
  choose_shift();
  for (const ChainDevice& device : chain.devices) {
    const auto same = std::ranges::find_if(sums_, [&](const SpeedSums& sums) {
      return sums.speed == device.speed;
    });
    sums_of_.push_back(same - sums_.begin());
    if (same == sums_.end()) add_sums(device.speed);
  }
}

void ChainCosts::choose_shift() {
  double layer = 0, output = 0, skip = 0;
  double speed = std::numeric_limits<double>::infinity();
  for (const ChainLayer& each : chain_.layers) {
    layer = std::max({layer, each.forward, each.backward});
    output = std::max(output, each.output_bytes);
  }
  for (const ChainSkip& each : chain_.skips) skip = std::max(skip, each.bytes);
  for (const ChainDevice& each : chain_.devices) {
    speed = std::min(speed, each.speed);
  }
  const auto microbatches = static_cast<std::size_t>(chain_.microbatches);
  // Upper bound for computing: both passes of all micro-batches through all
  // layers, on the slowest device.
  const int computing = bits(microbatches) + bits(2 * chain_.layers.size()) +
                        bits(layer) - bits(speed) + 1;
  // Upper bound for copies: everything is copied in both directions, once per
  // link and once per micro-batch.
  const int bytes =
      std::max(bits(output), bits(skip) + bits(chain_.skips.size())) + 1;
  const int copy = std::max(bits(chain_.link.latency),
                            bits(chain_.link.seconds_per_byte) + bytes) +
                   1;
  const int copying = copy + bits(2 * (chain_.devices.size() + microbatches));
  const int largest = std::max(computing, copying) + 1;
  shift_ = largest < kNothing / 2 ? 0 : 62 - largest;
}

int64_t ChainCosts::seconds(double on_speed_one, double speed) const {
  // Mantissas are divided first, so that no intermediate result overflows or
  // underflows.
  int value_bits = 0, speed_bits = 0;
  const double value = std::frexp(on_speed_one, &value_bits);
  const double divisor = std::frexp(speed, &speed_bits);
  return std::llround(
      std::ldexp(value / divisor, value_bits - speed_bits + shift_));
}

void ChainCosts::add_sums(double speed) {
  SpeedSums sums{speed, {0}, {0}};
  for (const ChainLayer& layer : chain_.layers) {
    sums.forward.push_back(sums.forward.back() + seconds(layer.forward, speed));
    sums.backward.push_back(sums.backward.back() +
                            seconds(layer.backward, speed));
  }
  sums_.push_back(std::move(sums));
}

int64_t ChainCosts::transfer(double bytes) const {
  int latency_bits = 0, byte_bits = 0, rate_bits = 0;
  const double latency = std::frexp(chain_.link.latency, &latency_bits);
  const double mantissa = std::frexp(bytes, &byte_bits);
  const double rate = std::frexp(chain_.link.seconds_per_byte, &rate_bits);
  return std::llround(
      std::ldexp(latency, latency_bits + shift_) +
      std::ldexp(mantissa * rate, byte_bits + rate_bits + shift_));
}

}  // namespace gpipe::balancing::detail
