// A Plan as tables.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "balancing/plan.h"

namespace gpipe::balancing {
namespace {

// With three digits at least, and a unit.
template <std::size_t N>
std::string with_unit(double value, double step,
                      const std::array<const char*, N>& units) {
  if (std::isinf(value)) return "unlimited";
  std::size_t unit = 0;
  for (; value >= step && unit + 1 < N; ++unit) value /= step;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g %s", value, units[unit]);
  return text.data();
}

std::string bytes_text(double bytes) {
  return with_unit<5>(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string seconds_text(double seconds) {
  return with_unit<3>(seconds * 1e6, 1000, {"us", "ms", "s"});
}

std::string percent_text(double part) {
  return std::to_string(std::lround(100 * part)) + " %";
}

using Table = std::vector<std::vector<std::string>>;

// Columns as wide as they need to be, aligned to the right.
void print(std::ostream& stream, const Table& table) {
  std::vector<std::size_t> widths(table[0].size());
  for (const auto& row : table) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      widths[k] = std::max(widths[k], row[k].size());
    }
  }
  for (const auto& row : table) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      stream << "  " << std::string(widths[k] - row[k].size(), ' ') << row[k];
    }
    stream << "\n";
  }
}

// What keeps the step from being faster, or the partition from being larger.
std::string bound_of(const Plan& plan, const PlannedPartition& partition) {
  double slowest = 0;
  for (const PlannedPartition& each : plan.partitions) {
    slowest = std::max(slowest, each.forward + each.backward);
  }
  constexpr double kClose = 0.95;
  std::string text;
  if (partition.forward + partition.backward >= kClose * slowest) text = "time";
  if (partition.memory_bytes >= kClose * partition.memory_limit) {
    text += text.empty() ? "memory" : ", memory";
  }
  return text;
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Plan& plan) {
  stream << plan.chunks << " micro-batches, checkpoint "
         << name_of(plan.checkpoint) << ": a step is predicted to take "
         << seconds_text(plan.step_seconds) << "\n";
  Table table = {{"partition", "device", "layers", "forward", "backward",
                  "memory", "of", "idle", "bound by"}};
  for (const PlannedPartition& each : plan.partitions) {
    table.push_back({std::to_string(table.size() - 1), each.device.str(),
                     std::to_string(each.layers), seconds_text(each.forward),
                     seconds_text(each.backward), bytes_text(each.memory_bytes),
                     bytes_text(each.memory_limit), percent_text(each.idle),
                     bound_of(plan, each)});
  }
  print(stream, table);

  stream << "tried:\n";
  Table tried = {{"micro-batches", "checkpoint", "step"}};
  for (const PlanCandidate& each : plan.candidates) {
    tried.push_back({std::to_string(each.chunks), name_of(each.checkpoint),
                     std::isinf(each.step_seconds)
                         ? "does not fit"
                         : seconds_text(each.step_seconds)});
  }
  print(stream, tried);
  return stream;
}

}  // namespace gpipe::balancing
