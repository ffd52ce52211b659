// The JSON form of a Plan.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "balancing/plan.h"

namespace gpipe::balancing {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

std::string recompute_of(const PlanCandidate& candidate) {
  return candidate.recompute_where_needed ? "where_needed"
                                          : to_string(candidate.checkpoint);
}

Json json_of(const PlanCandidate& candidate) {
  return {{"schedule", candidate.schedule},
          {"stages_per_rank", candidate.stages_per_rank},
          {"chunks", candidate.chunks},
          {"checkpoint", recompute_of(candidate)},
          {"offload", candidate.offload},
          {"step_seconds", number(candidate.step_seconds)}};
}

Json json_of(const PlannedPartition& part) {
  return {{"device", part.device.str()},
          {"stages", part.stages},
          {"layers", part.layers},
          {"forward_seconds", number(part.forward)},
          {"backward_seconds", number(part.backward)},
          {"memory_bytes", number(part.memory_bytes)},
          {"memory_limit", number(part.memory_limit)},
          {"idle", number(part.idle)}};
}

}  // namespace

std::string to_json(const Plan& plan) {
  Json json = {
      {"format", "gpipe plan 1"},
      {"step_seconds", number(plan.step_seconds)},
      {"schedule", plan.schedule_name},
      {"stages_per_rank", plan.stages_per_rank},
      {"placement", plan.placement == Placement::kV ? "v" : "loop"},
      {"chunks", plan.chunks},
      {"checkpoint", plan.recomputed_stages.empty() ? to_string(plan.checkpoint)
                                                    : "where_needed"},
      {"offload", plan.offload},
      {"balance", plan.balance}};
  if (!plan.recomputed_stages.empty()) {
    json["recomputed_stages"] = plan.recomputed_stages;
  }
  json["ranks"] = Json::array();
  for (const auto& each : plan.partitions) {
    json["ranks"].push_back(json_of(each));
  }
  if (plan.bound) {
    json["bound"] = {{"by", to_string(plan.bound->kind)},
                     {"rank", plan.bound->rank},
                     {"share", number(plan.bound->share)}};
  }
  json["families"] = Json::array();
  for (const auto& each : plan.families) {
    json["families"].push_back(json_of(each));
  }
  json["alternatives"] = Json::array();
  for (const PlanAlternative& each : plan.alternatives) {
    json["alternatives"].push_back(
        {{"with", each.change}, {"step_seconds", number(each.step_seconds)}});
  }
  constexpr int kIndent = 2;
  return json.dump(kIndent) + "\n";
}

}  // namespace gpipe::balancing
