#include "benchmarks/harness/costs/links.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment/statistics.h"
#include "gpipe/base/devices.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kFew = 16, kMany = 64 << 20;  // bytes
constexpr double kSeconds = 0.2;
constexpr std::size_t kTimes = 10;

double seconds_of_copy(c10::Device from, c10::Device to, int64_t bytes) {
  using Clock = std::chrono::steady_clock;
  const auto options = at::TensorOptions().dtype(at::kByte);
  const at::Tensor source = at::zeros({bytes}, options.device(from));
  at::Tensor target = at::empty({bytes}, options.device(to));
  target.copy_(source);  // warms up
  std::vector<double> seconds;
  for (double sum = 0; sum < kSeconds || seconds.size() < kTimes;) {
    synchronize({from, to});
    const auto start = Clock::now();
    target.copy_(source);
    synchronize({from, to});
    seconds.push_back(
        std::chrono::duration<double>(Clock::now() - start).count());
    sum += seconds.back();
  }
  return median(std::move(seconds));
}

}  // namespace

Link measure_link(c10::Device from, c10::Device to) {
  if (from == to || (from.is_cpu() && to.is_cpu())) return {};
  const double few = seconds_of_copy(from, to, kFew);
  const double many = seconds_of_copy(from, to, kMany);
  // The clock is too coarse to measure the bandwidth.
  if (many <= few) return {few, 0};
  return {few, static_cast<double>(kMany - kFew) / (many - few)};
}

}  // namespace gpipe::benchmarks
