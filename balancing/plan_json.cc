// The JSON form of a Plan.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "balancing/plan.h"
#include "balancing/profile/json_reader.h"
#include "gpipe/base/read_file.h"

namespace gpipe::balancing {
namespace {

using detail::Json;
using detail::JsonReader;

constexpr char kFormat[] = "gpipe plan 1";

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

// ---- Reading

constexpr char kDocument[] = "a plan";
// The deepest nesting is {"ranks": [{"stages": [0]}]}.
constexpr int kDepth = 5;
// Larger numbers would make schedules that do not fit into memory.
constexpr int64_t kMost = 1 << 20;

template <typename Result>
Result choice_of(JsonReader& reader, const std::string& name,
                 const std::map<std::string, Result>& choices) {
  const std::string text = reader.text(name);
  const auto found = choices.find(text);
  if (found != choices.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [each, result] : choices) names.push_back(each);
  TORCH_CHECK_VALUE(false, reader.place(), ": \"", name, "\" is \"", text,
                    "\", but should be one of ", c10::Join(", ", names));
}

PlanCandidate read_candidate(JsonReader& reader) {
  PlanCandidate result;
  result.schedule = reader.text("schedule");
  result.stages_per_rank = reader.count("stages_per_rank", kMost);
  result.chunks = reader.count("chunks", kMost);
  const auto mode = choice_of<std::optional<Checkpoint>>(
      reader, "checkpoint",
      {{"never", Checkpoint::kNever},
       {"except_last", Checkpoint::kExceptLast},
       {"always", Checkpoint::kAlways},
       {"where_needed", std::nullopt}});
  result.checkpoint = mode.value_or(Checkpoint::kAlways);
  result.recompute_where_needed = !mode;
  result.offload = reader.flag("offload");
  result.step_seconds = reader.number("step_seconds");
  return result;
}

PlannedPartition read_partition(JsonReader& reader) {
  PlannedPartition part;
  const std::string device = reader.text("device");
  try {
    part.device = torch::Device(device);
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, reader.place(), ": there is no device \"", device,
                      "\"");
  }
  part.stages = reader.whole_list("stages");
  part.layers = reader.whole("layers");
  part.forward = reader.number("forward_seconds");
  part.backward = reader.number("backward_seconds");
  part.memory_bytes = reader.number("memory_bytes");
  part.memory_limit = reader.number("memory_limit");
  part.idle = reader.number("idle");
  return part;
}

class PlanReader {
 public:
  PlanReader(const std::string& text, const std::string& source)
      : source_(source) {
    const Json json = detail::parse_json(text, source, kDepth, kDocument);
    JsonReader reader(json, source, kDocument);
    reader.check_format(kFormat);
    read_choice(reader);
    reader.each("ranks", "ranks", [&](JsonReader& rank) {
      plan_.partitions.push_back(read_partition(rank));
    });
    if (const Json* bound = reader.find("bound")) {
      JsonReader members(*bound, source + ": bound", kDocument);
      plan_.bound.emplace();
      plan_.bound->kind =
          choice_of<PlanBoundKind>(members, "by",
                                   {{"compute", PlanBoundKind::kCompute},
                                    {"bubble", PlanBoundKind::kBubble},
                                    {"memory", PlanBoundKind::kMemory},
                                    {"links", PlanBoundKind::kLinks}});
      plan_.bound->rank = members.whole("rank");
      plan_.bound->share = members.number("share");
      members.end();
    }
    reader.each("families", "families", [&](JsonReader& family) {
      plan_.families.push_back(read_candidate(family));
    });
    reader.each("alternatives", "alternatives", [&](JsonReader& alternative) {
      plan_.alternatives.push_back(
          {alternative.text("with"), alternative.number("step_seconds")});
    });
    reader.end();
    check();
  }

  Plan take() { return std::move(plan_); }

 private:
  void read_choice(JsonReader& reader) {
    const PlanCandidate choice = read_candidate(reader);
    plan_.schedule_name = choice.schedule;
    plan_.stages_per_rank = choice.stages_per_rank;
    plan_.chunks = choice.chunks;
    plan_.checkpoint = choice.checkpoint;
    plan_.offload = choice.offload;
    plan_.step_seconds = choice.step_seconds;
    plan_.sum_seconds = reader.seconds("sum_seconds");
    plan_.placement = choice_of<Placement>(
        reader, "placement",
        {{"loop", Placement::kLoop}, {"v", Placement::kV}});
    plan_.balance = reader.whole_list("balance");
    for (const Json& each : reader.list("recomputed_stages")) {
      TORCH_CHECK_VALUE(each.is_boolean(), source_,
                        ": \"recomputed_stages\" has ", each.dump(),
                        ", but should have true and false");
      plan_.recomputed_stages.push_back(each.get<bool>());
    }
  }

  void check() const {
    const auto stages = std::ssize(plan_.balance);
    const auto ranks = std::ssize(plan_.partitions);
    TORCH_CHECK_VALUE(ranks >= 1 && stages == ranks * plan_.stages_per_rank,
                      source_, ": there are ", stages, " stages on ", ranks,
                      " ranks with ", plan_.stages_per_rank,
                      " stages per rank");
    for (const int64_t layers : plan_.balance) {
      TORCH_CHECK_VALUE(layers >= 1, source_,
                        ": a stage has 0 layers, but needs at least 1");
    }
    TORCH_CHECK_VALUE(
        plan_.recomputed_stages.empty() ||
            plan_.recomputed_stages.size() == plan_.balance.size(),
        source_, ": \"recomputed_stages\" has ", plan_.recomputed_stages.size(),
        " entries for ", stages, " stages");
    TORCH_CHECK_VALUE(stages * plan_.chunks <= kMost, source_, ": ", stages,
                      " stages with ", plan_.chunks,
                      " micro-batches are too many");
    try {
      const auto fixed = fixed_stages_per_rank(plan_.schedule_name);
      TORCH_CHECK_VALUE(
          fixed.value_or(plan_.stages_per_rank) == plan_.stages_per_rank &&
              plan_.schedule_name != "forward-only",
          source_, ": ", plan_.schedule_name, " with ", plan_.stages_per_rank,
          " stages per rank is no schedule that trains");
    } catch (const std::invalid_argument& error) {
      TORCH_CHECK_VALUE(false, source_, ": ", error.what());
    }
  }

  const std::string source_;
  Plan plan_;
};

}  // namespace

Plan plan_from_json(const std::string& text, const std::string& source) {
  return PlanReader(text, source).take();
}

Plan read_plan(const std::string& path) {
  return plan_from_json(gpipe::internal::read_file(path), path);
}

std::string to_json(const Plan& plan) {
  Json json = {
      {"format", kFormat},
      {"step_seconds", number(plan.step_seconds)},
      {"sum_seconds", number(plan.sum_seconds)},
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
