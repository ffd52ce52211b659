// The text form of a Plan: two tables.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "balancing/plan.h"
#include "gpipe/base/text.h"

namespace gpipe::balancing {
namespace {

using Table = std::vector<std::vector<std::string>>;

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

std::string recompute_text(Checkpoint checkpoint, bool where_needed) {
  return where_needed ? "where_needed" : to_string(checkpoint);
}

void print_bound(std::ostream& stream, const Plan& plan,
                 const PlanBound& bound) {
  const std::string rank = std::to_string(bound.rank);
  const std::string share = percent_text(bound.share, 0);
  stream << "bound by " << to_string(bound.kind) << ": ";
  switch (bound.kind) {
    case PlanBoundKind::kCompute:
      stream << "partition " << rank << " computes for " << share
             << " of the step\n";
      break;
    case PlanBoundKind::kBubble:
      stream << "even the busiest partition, " << rank << ", waits for "
             << share << " of the step\n";
      break;
    case PlanBoundKind::kMemory:
      stream << "partition " << rank << " uses " << share
             << " of its memory, and more memory would save time\n";
      break;
    case PlanBoundKind::kLinks:
      stream << "the busiest partition, " << rank << ", waits for "
             << (plan.sum_seconds > 0 ? "copies and sums of gradients"
                                      : "copies")
             << " for " << share << " of the step\n";
      break;
  }
}

// Returns how much longer than `least` a time is: "+8.1 %".
std::string difference_text(double seconds, double least) {
  if (least <= 0) return "";
  const double part = seconds / least - 1;
  constexpr double kShown = 5e-4;  // less is 0.0 %
  return (part <= -kShown ? "-" : "+") + percent_text(std::abs(part));
}

// Returns whether a family is not faster than the same one without offload.
bool offloads_for_nothing(const Plan& plan, const PlanCandidate& family) {
  if (!family.offload) return false;
  return std::ranges::any_of(plan.families, [&](const PlanCandidate& other) {
    return !other.offload && other.schedule == family.schedule &&
           other.stages_per_rank == family.stages_per_rank &&
           other.step_seconds <= family.step_seconds;
  });
}

void print_families(std::ostream& stream, const Plan& plan) {
  stream << "the best of each schedule:\n";
  Table table = {{"schedule", "stages per rank", "micro-batches", "checkpoint",
                  "offload", "step", "longer by"}};
  for (const PlanCandidate& each : plan.families) {
    if (offloads_for_nothing(plan, each)) continue;
    table.push_back(
        {each.schedule, std::to_string(each.stages_per_rank),
         std::to_string(each.chunks),
         recompute_text(each.checkpoint, each.recompute_where_needed),
         each.offload ? "yes" : "no", seconds_text(each.step_seconds),
         difference_text(each.step_seconds, plan.step_seconds)});
  }
  stream << columns_text(table, "r");
  for (const PlanAlternative& each : plan.alternatives) {
    stream << "with " << each.change << ": " << seconds_text(each.step_seconds)
           << " (" << difference_text(each.step_seconds, plan.step_seconds)
           << ")\n";
  }
}

}  // namespace

const char* to_string(PlanBoundKind kind) {
  // In the order of PlanBoundKind.
  constexpr const char* kNames[] = {"compute", "bubble", "memory", "links"};
  return kNames[static_cast<int>(kind)];
}

std::ostream& operator<<(std::ostream& stream, const Plan& plan) {
  stream << plan.schedule_name << ", " << plan.stages_per_rank
         << (plan.stages_per_rank == 1 ? " stage" : " stages") << " per rank, "
         << plan.chunks << " micro-batches, checkpoint "
         << recompute_text(plan.checkpoint, !plan.recomputed_stages.empty())
         << (plan.offload ? ", offload" : "")
         << ": a step is predicted to take " << seconds_text(plan.step_seconds);
  if (plan.sum_seconds > 0) {
    stream << ", of which " << seconds_text(plan.sum_seconds)
           << " are for the sums of gradients";
  }
  stream << "\n";
  Table table = {{"partition", "device", "layers", "forward", "backward",
                  "memory", "of", "idle", "of the bubble", "bound by"}};
  for (const PlannedPartition& each : plan.partitions) {
    table.push_back({std::to_string(table.size() - 1), each.device.str(),
                     std::to_string(each.layers), seconds_text(each.forward),
                     seconds_text(each.backward), bytes_text(each.memory_bytes),
                     bytes_text(each.memory_limit), percent_text(each.idle, 0),
                     percent_text(each.bubble_share, 0), bound_of(plan, each)});
  }
  stream << columns_text(table, "r");

  if (plan.bound) print_bound(stream, plan, *plan.bound);
  print_families(stream, plan);
  return stream;
}

}  // namespace gpipe::balancing
