#include "benchmarks/harness/report/figures.h"

#include <algorithm>
#include <numeric>

#include "benchmarks/harness/experiment/statistics.h"

namespace gpipe::benchmarks {
namespace {

// Returns the sum of `part` over all devices, or none if memory was not
// measured.
std::optional<double> sum(const Outcome& outcome,
                          int64_t (*part)(const DeviceMemory&)) {
  if (outcome.memory.empty()) return std::nullopt;
  return static_cast<double>(total(outcome.memory, part));
}

}  // namespace

std::vector<double> speeds(const Outcome& outcome) {
  std::vector<double> speeds;
  for (const Duration& duration : outcome.durations) {
    speeds.push_back(static_cast<double>(outcome.samples) /
                     duration.wall_seconds);
  }
  return speeds;
}

std::optional<double> median_speed(const Outcome& outcome) {
  if (outcome.durations.empty()) return std::nullopt;
  return median(speeds(outcome));
}

const Outcome* base_of(const Benchmark& benchmark, const Outcome& outcome,
                       const std::vector<Outcome>& outcomes) {
  const std::string& own = outcome.experiment.base;
  const std::string& name = own.empty() ? benchmark.base : own;
  const auto found = std::find_if(
      outcomes.begin(), outcomes.end(),
      [&](const auto& other) { return other.experiment.name == name; });
  return found == outcomes.end() ? nullptr : &*found;
}

std::optional<double> figure_of(Figure figure, const Outcome& outcome,
                                const Outcome* base) {
  switch (figure) {
    case Figure::kSpeed:
      return median_speed(outcome);
    case Figure::kSpeedUp: {
      const auto speed = median_speed(outcome);
      const auto of_base = base ? median_speed(*base) : std::nullopt;
      if (!speed || !of_base) return std::nullopt;
      return *speed / *of_base;
    }
    case Figure::kParameters:
      return sum(outcome, [](const DeviceMemory& device) {
        return device.gradients / static_cast<int64_t>(sizeof(float));
      });
    case Figure::kLastingBytes:
      return sum(outcome,
                 [](const DeviceMemory& device) { return device.lasting(); });
    case Figure::kActivationBytes:
      return sum(outcome, [](const DeviceMemory& device) {
        return device.activations();
      });
    case Figure::kTotalBytes:
      return sum(outcome,
                 [](const DeviceMemory& device) { return device.peak; });
  }
  return std::nullopt;
}

bool is_speed(Figure figure) {
  return figure == Figure::kSpeed || figure == Figure::kSpeedUp;
}

bool is_bytes(Figure figure) {
  return !is_speed(figure) && figure != Figure::kParameters;
}

std::string to_string(Figure figure) {
  switch (figure) {
    case Figure::kSpeed:
      return "samples/s";
    case Figure::kSpeedUp:
      return "speed-up";
    case Figure::kParameters:
      return "parameters";
    case Figure::kLastingBytes:
      return "model memory";
    case Figure::kActivationBytes:
      return "activations";
    case Figure::kTotalBytes:
      return "total memory";
  }
  return "unknown";
}

int64_t total(const std::vector<DeviceMemory>& memory,
              int64_t (*part)(const DeviceMemory&)) {
  return std::accumulate(memory.begin(), memory.end(), int64_t{0},
                         [part](int64_t sum, const DeviceMemory& device) {
                           return sum + part(device);
                         });
}

}  // namespace gpipe::benchmarks
