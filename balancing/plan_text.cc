// The text form of a Plan: two tables.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "balancing/plan.h"
#include "gpipe/text/columns.h"
#include "gpipe/text/units.h"

namespace gpipe::balancing {
namespace {

using Table = std::vector<std::vector<std::string>>;

void print(std::ostream& stream, const Table& table) {
  const std::string sides(table[0].size(), 'r');
  for (const std::string& line : align_columns(table, sides)) {
    stream << line << "\n";
  }
}

// Returns what limits the partition: "time" if it is about as slow as the
// slowest one, "memory" if its memory is almost full, both, or nothing.
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
         << to_string(plan.checkpoint) << ": a step is predicted to take "
         << seconds_text(plan.step_seconds) << "\n";
  Table table = {{"partition", "device", "layers", "forward", "backward",
                  "memory", "of", "idle", "of the bubble", "bound by"}};
  for (const PlannedPartition& each : plan.partitions) {
    table.push_back({std::to_string(table.size() - 1), each.device.str(),
                     std::to_string(each.layers), seconds_text(each.forward),
                     seconds_text(each.backward), bytes_text(each.memory_bytes),
                     bytes_text(each.memory_limit), percent_text(each.idle, 0),
                     percent_text(each.bubble_share, 0), bound_of(plan, each)});
  }
  print(stream, table);

  stream << "tried:\n";
  Table tried = {{"micro-batches", "checkpoint", "step"}};
  for (const PlanCandidate& each : plan.candidates) {
    tried.push_back({std::to_string(each.chunks), to_string(each.checkpoint),
                     std::isinf(each.step_seconds)
                         ? "does not fit"
                         : seconds_text(each.step_seconds)});
  }
  print(stream, tried);
  return stream;
}

}  // namespace gpipe::balancing
