#include "balancing/plan_search.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "balancing/infeasible.h"
#include "balancing/planner/problem.h"
#include "balancing/planner/search.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::balancing::detail {
namespace {

using planner::Choice;
using planner::Problem;
using planner::Recompute;
using planner::Tried;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- From a profile to a problem

std::vector<Recompute> recomputes_of(const PlanOptions& options) {
  const auto& modes = options.checkpoints();
  std::vector<Recompute> result(modes.begin(), modes.end());
  const auto has = [&](Checkpoint mode) {
    return std::ranges::find(modes, mode) != modes.end();
  };
  if (has(Checkpoint::kNever) && has(Checkpoint::kAlways)) {
    result.push_back(planner::kWhereNeeded);
  }
  return result;
}

Problem problem_of(const std::vector<PlanSample>& samples,
                   const std::vector<PlanDevice>& devices,
                   const PlanOptions& options) {
  Problem problem;
  for (const PlanSample& sample : samples) {
    problem.workloads.push_back(workload_of(sample));
  }
  bool has_cpu = false;
  for (const PlanDevice& device : devices) {
    problem.ranks.push_back(
        {device.speed(), device.memory_bytes(), device.host_bandwidth()});
    has_cpu = has_cpu || device.device().is_cpu();
  }
  for (std::size_t r = 0; r < options.gradient_sums().size(); ++r) {
    const PlanLink& sum = options.gradient_sums()[r];
    problem.ranks[r].sum = {sum.latency, 1 / sum.bandwidth};
  }
  if (options.links().empty()) {
    problem.links = {{options.latency(), 1 / options.bandwidth()}};
  }
  for (const PlanLink& link : options.links()) {
    problem.links.push_back({link.latency, 1 / link.bandwidth});
  }
  problem.param_scale = options.param_scale();
  problem.action_seconds = options.overhead().value_or(0);
  problem.workers = static_cast<double>(workers_of(devices, options));
  problem.schedules = options.schedules().empty() ? training_schedule_names()
                                                  : options.schedules();
  problem.stages_per_rank = options.stages_per_rank();
  problem.recomputes = recomputes_of(options);
  problem.offload = options.offload() && !has_cpu;
  return problem;
}

[[noreturn]] void throw_infeasible(const Problem& problem) {
  const planner::Need need = planner::least_memory(problem);
  std::ostringstream text;
  text.precision(15);
  text << "no schedule, cut and checkpoint mode of "
       << problem.workloads[0].layers.size() << " layers for "
       << problem.ranks.size()
       << " devices respects the memory limits; one would if every device had "
       << need.bytes << " bytes";
  if (!std::isinf(need.factor)) {
    text << ", or " << need.factor << " times its memory";
  }
  throw InfeasibleError(text.str(), /*layer=*/-1, /*device=*/-1, need.bytes,
                        need.factor);
}

// ---- From a choice to a plan

PlanCandidate candidate_of(const Problem& problem, const Tried& tried) {
  const planner::Candidate& from = tried.candidate;
  PlanCandidate result;
  result.chunks = problem.workloads[from.workload].microbatches;
  result.checkpoint = from.recompute.value_or(Checkpoint::kAlways);
  result.recompute_where_needed = from.recompute == planner::kWhereNeeded;
  result.step_seconds = tried.seconds;
  if (std::isinf(tried.seconds)) result.remark = "no cut was found that fits";
  if (!tried.simulated) result.remark = "takes at least as long";
  result.schedule = from.schedule;
  result.stages_per_rank = from.stages_per_rank;
  result.offload = from.offload;
  result.simulated = tried.simulated;
  return result;
}

// Returns whether all micro-batches of each stage are recomputed.
std::vector<bool> recomputed_stages(const Schedule& schedule,
                                    std::size_t stages) {
  std::vector<bool> result(stages);
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute) {
        result[action.stage] = true;
      }
    }
  }
  return result;
}

// Sets `idle` and `bubble_share` of the ranks of `timeline`.
void set_idle(const Timeline& timeline, std::vector<PlannedPartition>& parts) {
  double bubble = 0;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (timeline.makespan <= 0) continue;
    parts[r].idle = timeline.idle[r] / timeline.makespan;
    bubble += parts[r].idle;
  }
  for (PlannedPartition& part : parts) {
    if (bubble > 0) part.bubble_share = part.idle / bubble;
  }
}

std::vector<PlannedPartition> partitions_of(
    const Choice& choice, const std::vector<PlanDevice>& devices) {
  const planner::Prediction& prediction = choice.prediction;
  const std::vector<int> ranks = rank_of_stage(prediction.schedule);
  std::vector<PlannedPartition> result(devices.size());
  int64_t first = 0;
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    PlannedPartition& part = result[ranks[s]];
    if (part.stages.empty()) part.first_layer = first;
    part.stages.push_back(static_cast<int64_t>(s));
    part.layers += choice.best.balance[s];
    part.forward += prediction.stages.seconds.forward[s];
    part.backward += prediction.stages.seconds.backward[s];
    first += choice.best.balance[s];
  }
  for (std::size_t r = 0; r < devices.size(); ++r) {
    PlannedPartition& part = result[r];
    part.device = devices[r].device();
    part.memory_bytes = prediction.peak_bytes[r];
    part.memory_limit = devices[r].memory_bytes();
  }
  set_idle(prediction.timeline, result);
  return result;
}

// ---- Explanations

// The alternative that says whether memory bounds the step.
constexpr char kTwiceTheMemory[] = "twice the memory";

// Returns the predicted step with another problem, searched among the schedules
// of the three best families only. It is never longer than that of the choice:
// what the other problem has more need not be used.
double seconds_with(Problem problem, const Choice& choice) {
  constexpr std::size_t kFamilies = 3;
  std::set<std::string> names;
  std::set<int64_t> stages;
  for (const Tried& family : choice.families) {
    names.insert(family.candidate.schedule);
    stages.insert(family.candidate.stages_per_rank);
    if (names.size() == kFamilies) break;
  }
  problem.schedules.assign(names.begin(), names.end());
  problem.stages_per_rank.assign(stages.begin(), stages.end());
  planner::Effort effort;
  constexpr double kPart = 0.1;
  effort.actions_per_candidate *= kPart;
  effort.actions_to_improve *= kPart;
  const auto other = planner::choose(problem, effort);
  return other ? std::min(other->best.seconds, choice.best.seconds)
               : choice.best.seconds;
}

Problem with_one_more_device(Problem problem) {
  const std::size_t ranks = problem.ranks.size();
  if (problem.links.size() > 1) {
    // The new device is linked as the last one is.
    std::vector<planner::Link> links;
    for (std::size_t a = 0; a <= ranks; ++a) {
      for (std::size_t b = 0; b <= ranks; ++b) {
        const auto from = static_cast<int>(std::min(a, ranks - 1));
        const auto to = static_cast<int>(std::min(b, ranks - 1));
        const bool own = a != b && from == to && ranks > 1;
        links.push_back(own ? problem.link(from - 1, to)
                            : problem.link(from, to));
      }
    }
    problem.links = std::move(links);
  }
  if (problem.workers >= static_cast<double>(ranks)) {
    problem.workers = kInfinity;
  }
  problem.ranks.push_back(problem.ranks.back());
  return problem;
}

std::vector<PlanAlternative> alternatives_of(const Problem& problem,
                                             const Choice& choice) {
  std::vector<PlanAlternative> result;
  if (problem.ranks.size() < problem.workloads[0].layers.size()) {
    result.push_back({"one more device",
                      seconds_with(with_one_more_device(problem), choice)});
  }
  if (has_limits(problem)) {
    Problem more = problem;
    for (planner::Rank& rank : more.ranks) rank.memory_bytes *= 2;
    result.push_back({kTwiceTheMemory, seconds_with(std::move(more), choice)});
  }
  Problem faster = problem;
  bool has_links = false;
  const auto speed_up = [&](auto& link) {
    has_links = has_links || link.latency > 0 || link.seconds_per_byte > 0;
    link.latency /= 2;
    link.seconds_per_byte /= 2;
  };
  if (problem.ranks.size() > 1) std::ranges::for_each(faster.links, speed_up);
  for (planner::Rank& rank : faster.ranks) speed_up(rank.sum);
  if (has_links) {
    result.push_back(
        {"links twice as fast", seconds_with(std::move(faster), choice)});
  }
  return result;
}

// Returns whether a rank recomputes because its memory is short, or true if
// recomputes do not depend on the rank.
bool may_lack_memory(const Plan& plan, const PlannedPartition& part) {
  return plan.recomputed_stages.empty() ||
         std::ranges::any_of(
             part.stages, [&](int64_t s) { return plan.recomputed_stages[s]; });
}

PlanBound bound_of(const Plan& plan) {
  const Timeline& timeline = plan.timeline;
  PlanBound bound;
  constexpr double kGain = 0.98;
  for (const PlanAlternative& each : plan.alternatives) {
    if (each.change != kTwiceTheMemory ||
        each.step_seconds > kGain * plan.step_seconds) {
      continue;
    }
    bound.kind = PlanBoundKind::kMemory;
    for (std::size_t r = 0; r < plan.partitions.size(); ++r) {
      const double part =
          plan.partitions[r].memory_bytes / plan.partitions[r].memory_limit;
      if (part <= bound.share || !may_lack_memory(plan, plan.partitions[r])) {
        continue;
      }
      bound.share = part;
      bound.rank = static_cast<int64_t>(r);
    }
    return bound;
  }
  const auto busiest = std::ranges::min_element(timeline.idle);
  bound.rank = busiest - timeline.idle.begin();
  if (plan.step_seconds <= 0) return bound;
  const IdleParts idle = idle_parts(timeline)[bound.rank];
  const double links = idle.transfer + plan.sum_seconds;
  const double all = idle.total() + plan.sum_seconds;
  constexpr double kSmall = 0.1;
  if (all <= kSmall * plan.step_seconds) {
    bound.share = 1 - all / plan.step_seconds;
  } else if (links >= all / 2) {
    bound.kind = PlanBoundKind::kLinks;
    bound.share = links / plan.step_seconds;
  } else {
    bound.kind = PlanBoundKind::kBubble;
    bound.share = idle.total() / plan.step_seconds;
  }
  return bound;
}

}  // namespace

Plan plan_search(const std::vector<PlanSample>& samples,
                 const std::vector<PlanDevice>& devices,
                 const PlanOptions& options) {
  const Problem problem = problem_of(samples, devices, options);
  planner::check(problem);
  TORCH_CHECK_VALUE(
      !planner::candidates(problem).empty(),
      "plan: none of the schedules can "
      "run ",
      problem.workloads[0].layers.size(), " layers on ", problem.ranks.size(),
      " devices with the given stages_per_rank: use "
      "fewer stages per rank, or name a schedule that has so many");
  std::optional<Choice> choice = planner::choose(problem);
  if (!choice) throw_infeasible(problem);

  Plan plan;
  const PlanCandidate best = candidate_of(problem, choice->best);
  plan.balance = choice->best.balance;
  plan.chunks = best.chunks;
  plan.checkpoint = best.checkpoint;
  plan.sum_seconds = choice->prediction.sum_seconds;
  plan.step_seconds = choice->prediction.timeline.makespan + plan.sum_seconds;
  plan.partitions = partitions_of(*choice, devices);
  for (const Tried& tried : choice->tried) {
    plan.candidates.push_back(candidate_of(problem, tried));
  }
  plan.schedule_name = best.schedule;
  plan.stages_per_rank = best.stages_per_rank;
  const std::vector<int> ranks = rank_of_stage(choice->prediction.schedule);
  if (ranks.size() > devices.size() && ranks.back() == 0) {
    plan.placement = Placement::kV;
  }
  plan.offload = best.offload;
  if (best.recompute_where_needed) {
    plan.recomputed_stages =
        recomputed_stages(choice->prediction.schedule, plan.balance.size());
  }
  plan.timeline = std::move(choice->prediction.timeline);
  for (const Tried& family : choice->families) {
    plan.families.push_back(candidate_of(problem, family));
  }
  plan.alternatives = alternatives_of(problem, *choice);
  plan.bound = bound_of(plan);
  return plan;
}

}  // namespace gpipe::balancing::detail
