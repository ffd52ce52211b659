#include "balancing/plan.h"

#include <ATen/Parallel.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "balancing/infeasible.h"
#include "balancing/plan_replicas.h"
#include "balancing/planner/evaluate.h"
#include "balancing/planner/problem.h"
#include "balancing/planner/search.h"
#include "balancing/profile/threads_scope.h"
#include "balancing/stage_costs.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::balancing {
namespace {

using planner::Choice;
using planner::Problem;
using planner::Recompute;
using planner::Tried;

constexpr int64_t kChunksPerPartition = 8;
// Seconds per action on a CPU: half of a cell's (docs/results/overhead.md).
constexpr double kOverhead = 10e-6;

// Throws unless `value` is finite and not negative. `what`: "latency must be a
// number of seconds".
void check_amount(const char* what, double value) {
  TORCH_CHECK_VALUE(std::isfinite(value) && value >= 0, "plan: ", what,
                    " >= 0, but is ", value);
}

void check_links(const char* what, const std::vector<PlanLink>& links) {
  for (const PlanLink& link : links) {
    TORCH_CHECK_VALUE(
        std::isfinite(link.latency) && link.latency >= 0 && link.bandwidth > 0,
        "plan: a ", what, " has a latency of ", link.latency,
        " s and a bandwidth of ", link.bandwidth,
        " bytes/s, but they must be >= 0 and above 0");
  }
}

// Checks links, schedules and stages per rank.
void check_choices(std::size_t devices, const PlanOptions& options) {
  const std::size_t pairs = devices * devices;
  TORCH_CHECK_VALUE(options.links().empty() || options.links().size() == pairs,
                    "plan: ", devices, " devices have ", pairs,
                    " links, but there are ", options.links().size());
  const std::size_t sums = options.gradient_sums().size();
  TORCH_CHECK_VALUE(sums == 0 || sums == devices, "plan: there are ", devices,
                    " devices, but ", sums, " gradient_sums");
  check_amount("overhead must be a number of seconds",
               options.overhead().value_or(0));
  check_links("link", options.links());
  check_links("gradient sum", options.gradient_sums());
  const std::vector<std::string> names = schedule_names();
  for (const std::string& name : options.schedules()) {
    TORCH_CHECK_VALUE(
        name != "forward-only" && std::ranges::find(names, name) != names.end(),
        "plan: there is no schedule \"", name, "\" that trains; there are ",
        absl::StrJoin(names, ", "), ", of which forward-only does not train");
  }
  TORCH_CHECK_VALUE(!options.stages_per_rank().empty(),
                    "plan: there must be at least 1 number of stages per rank");
  for (const int64_t stages : options.stages_per_rank()) {
    TORCH_CHECK_VALUE(stages >= 1,
                      "plan: stages_per_rank must be at least 1, but is ",
                      stages);
  }
}

void check(int64_t rows, const std::vector<PlanDevice>& devices,
           const PlanOptions& options) {
  TORCH_CHECK_VALUE(!devices.empty(), "plan: there must be at least 1 device");
  TORCH_CHECK_VALUE(rows >= 1,
                    "plan: a mini-batch must have at least 1 row, but it has ",
                    rows);
  for (std::size_t j = 0; j < devices.size(); ++j) {
    const double speed = devices[j].speed();
    TORCH_CHECK_VALUE(std::isfinite(speed) && speed > 0,
                      "plan: the speed of device ", j, " is ", speed,
                      ", but must be above 0");
    TORCH_CHECK_VALUE(devices[j].memory_bytes() >= 0, "plan: device ", j,
                      " has ", devices[j].memory_bytes(),
                      " bytes of memory, but must have at least 0");
    TORCH_CHECK_VALUE(devices[j].host_bandwidth() > 0,
                      "plan: the host_bandwidth of device ", j, " is ",
                      devices[j].host_bandwidth(), ", but must be above 0");
  }
  for (const int64_t chunks : options.chunks()) {
    TORCH_CHECK_VALUE(chunks >= 1,
                      "plan: chunks must be at least 1, but there is ", chunks);
  }
  TORCH_CHECK_VALUE(!options.checkpoints().empty(),
                    "plan: there must be at least 1 checkpoint mode");
  check_amount("param_scale must be a number", options.param_scale());
  check_amount("latency must be a number of seconds", options.latency());
  TORCH_CHECK_VALUE(options.bandwidth() > 0,
                    "plan: bandwidth must be above 0, but is ",
                    options.bandwidth());
  TORCH_CHECK_VALUE(options.workers() >= 0,
                    "plan: workers must be at least 0, but is ",
                    options.workers());
  check_choices(devices.size(), options);
}

std::vector<int64_t> chunks_to_try(const PlanOptions& options, int64_t rows,
                                   std::size_t partitions) {
  std::vector<int64_t> given = options.chunks();
  if (given.empty()) {
    const auto most = kChunksPerPartition * static_cast<int64_t>(partitions);
    for (int64_t chunks = 1; chunks <= most; chunks *= 2) {
      given.push_back(chunks);
    }
  }
  // The actual number of micro-batches can be smaller: 5 rows in 4 chunks give
  // 2, 2 and 1.
  std::set<int64_t> actual;
  for (const int64_t chunks : given) {
    actual.insert(num_microbatches(rows, chunks));
  }
  return {actual.begin(), actual.end()};
}

// Returns the devices of `replicas` pipelines with `devices` each.
std::vector<c10::Device> places(const std::vector<PlanDevice>& devices,
                                int64_t replicas = 1) {
  std::vector<c10::Device> result;
  for (int64_t k = 0; k < replicas; ++k) {
    for (const PlanDevice& device : devices) result.push_back(device.device());
  }
  return result;
}

void check_layers(std::size_t layers, const std::vector<PlanDevice>& devices) {
  TORCH_CHECK_VALUE(layers >= devices.size(), "plan: cannot cut ", layers,
                    " layers for ", devices.size(),
                    " devices: each needs a layer of its own");
}

// Returns whether a candidate splits backwards.
bool splits_backward(const PlanOptions& options) {
  const auto& names = options.schedules();
  return names.empty() || std::ranges::any_of(names, planner::splits_backward);
}

int64_t cores() { return std::max(1U, std::thread::hardware_concurrency()); }

// Returns how many partitions of each of `replicas` pipelines with `devices`
// each can compute at the same time.
double workers_of(const std::vector<PlanDevice>& devices,
                  const PlanOptions& options, int64_t replicas = 1) {
  const auto all = replicas * std::ssize(devices);
  const auto cpus = replicas * std::ranges::count_if(devices, [](auto& each) {
                      return each.device().is_cpu();
                    });
  int64_t workers = all;
  if (options.workers() > 0) {
    workers = std::min(all, options.workers());
  } else if (cpus > 0) {
    const auto share = internal::share_of_threads(places(devices, replicas));
    workers = all - cpus + std::clamp<int64_t>(cores() / share, 1, cpus);
  }
  return static_cast<double>(workers) / static_cast<double>(replicas);
}

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

Problem problem_of(std::vector<planner::Workload> workloads,
                   const std::vector<PlanDevice>& devices,
                   const PlanOptions& options, int64_t replicas) {
  Problem problem;
  problem.workloads = std::move(workloads);
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
  problem.workers = workers_of(devices, options, replicas);
  problem.schedules = options.schedules().empty() ? training_schedule_names()
                                                  : options.schedules();
  problem.stages_per_rank = options.stages_per_rank();
  problem.recomputes = recomputes_of(options);
  problem.offload = options.offload() && !has_cpu;
  return problem;
}

// Throws c10::ValueError if the schedule of `candidate` is too large.
void check_size(const Problem& problem, const planner::Candidate& candidate) {
  try {
    internal::check_sizes(std::ssize(problem.ranks),
                          problem.workloads[candidate.workload].microbatches,
                          candidate.stages_per_rank);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "plan: ", error.what(),
                      ": use fewer chunks or stages_per_rank");
  }
}

[[noreturn]] void throw_infeasible(const Problem& problem,
                                   const std::vector<PlanDevice>& devices) {
  const planner::LeastMemory need = planner::least_memory(problem);
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
  double reserved = 0;
  for (const PlanDevice& each : devices) {
    constexpr double kAny = 1e12;
    reserved = std::max(reserved, kAny - usable_memory(each.device(), kAny));
  }
  if (reserved > 0) {
    text << " (usable_memory(), which --memory_gib and machines.json go "
            "through, leaves "
         << reserved << " bytes of a GPU to cuBLAS: add them there)";
  }
  throw InfeasibleError(text.str(), need.bytes, need.factor);
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

Problem with_one_more_device(Problem problem, double workers) {
  const std::size_t ranks = problem.ranks.size();
  if (problem.links.size() > 1) {
    // The new device is linked as the last one is.
    std::vector<planner::Link> links;
    for (std::size_t a = 0; a <= ranks; ++a) {
      for (std::size_t b = 0; b <= ranks; ++b) {
        auto from = static_cast<int>(std::min(a, ranks - 1));
        auto to = static_cast<int>(std::min(b, ranks - 1));
        // Between the last and the new one: the link with the one before.
        if (from == to && ranks > 1 && a != b) --(a < b ? from : to);
        links.push_back(problem.link(from, to));
      }
    }
    problem.links = std::move(links);
  }
  problem.workers = workers;
  problem.ranks.push_back(problem.ranks.back());
  return problem;
}

// `workers`: those of a problem with one more device.
std::vector<PlanAlternative> alternatives_of(const Problem& problem,
                                             double workers,
                                             const Choice& choice) {
  std::vector<PlanAlternative> result;
  if (problem.ranks.size() < problem.workloads[0].layers.size()) {
    result.push_back(
        {"one more device",
         seconds_with(with_one_more_device(problem, workers), choice)});
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
      // Of 0 bytes of 0 the part is NaN.
      if (!(part > bound.share) || !may_lack_memory(plan, plan.partitions[r])) {
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

// Plans for the best of PlanOptions::schedules(); see
// balancing/planner/search.h. `replicas`: how many equal pipelines share the
// cores. Throws InfeasibleError if nothing fits.
Plan plan_search(std::vector<planner::Workload> workloads,
                 const std::vector<PlanDevice>& devices,
                 const PlanOptions& options, int64_t replicas = 1) {
  const Problem problem =
      problem_of(std::move(workloads), devices, options, replicas);
  const std::vector<planner::Candidate> candidates =
      planner::candidates(problem);
  TORCH_CHECK_VALUE(
      !candidates.empty(),
      "plan: none of the schedules can "
      "run ",
      problem.workloads[0].layers.size(), " layers on ", problem.ranks.size(),
      " devices with the given stages_per_rank: use "
      "fewer stages per rank, or name a schedule that has so many");
  for (const planner::Candidate& each : candidates) check_size(problem, each);
  planner::check(problem);
  std::optional<Choice> choice = planner::choose(problem);
  if (!choice) throw_infeasible(problem, devices);

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
    if (std::ranges::count(plan.recomputed_stages, true) == 0) {
      // With kAlways, train_step() would recompute everything.
      plan.recomputed_stages.clear();
      plan.checkpoint = Checkpoint::kNever;
    }
  }
  plan.timeline = std::move(choice->prediction.timeline);
  for (const Tried& family : choice->families) {
    plan.families.push_back(candidate_of(problem, family));
  }
  std::vector<PlanDevice> one_more = devices;
  one_more.push_back(devices.back());
  plan.alternatives = alternatives_of(
      problem, workers_of(one_more, options, replicas), *choice);
  plan.bound = bound_of(plan);
  return plan;
}

}  // namespace

double usable_memory(torch::Device device, double bytes) {
  constexpr double kWorkspaces = 2.0 * 32 * 1024 * 1024;
  if (!device.is_cuda()) return bytes;
  return std::max(bytes - kWorkspaces, std::min(bytes, 0.0));
}

GPipeOptions Plan::options() const {
  std::vector<torch::Device> devices;
  for (const PlannedPartition& partition : partitions) {
    devices.push_back(partition.device);
  }
  return GPipeOptions(balance)
      .devices(devices)
      .chunks(chunks)
      .checkpoint(checkpoint)
      .stages_per_rank(stages_per_rank)
      .placement(placement);
}

Schedule Plan::schedule() const {
  const Schedule base = named_schedule(
      schedule_name, static_cast<int>(partitions.size()),
      static_cast<int>(chunks), static_cast<int>(stages_per_rank));
  const bool by_stage = !recomputed_stages.empty();
  const auto checkpointed =
      by_stage
          ? 0
          : static_cast<int>(checkpointed_microbatches(checkpoint, chunks));
  Schedule schedule = with_recompute(base, [&](int stage, int microbatch) {
    return by_stage ? recomputed_stages[stage] : microbatch < checkpointed;
  });
  if (!offload) return schedule;
  return with_offload(std::move(schedule),
                      distant_cells(base, planner::kOffloadDistance));
}

namespace {

// Plans for one of `replicas` equal pipelines with `devices` and `rows` each.
Plan plan_replica(const Profile& profile, int64_t rows,
                  const std::vector<PlanDevice>& devices,
                  const PlanOptions& options, int64_t replicas) {
  check(rows, devices, options);
  check_layers(profile.times.size(), devices);
  TORCH_CHECK_VALUE(profile.rows >= 1, "plan: the profile has ", profile.rows,
                    " rows, but must have at least 1");
  std::vector<planner::Workload> workloads;
  for (const int64_t chunks : chunks_to_try(options, rows, devices.size())) {
    workloads.push_back(detail::workload_of(profile, rows, chunks));
  }
  return plan_search(std::move(workloads), devices, options, replicas);
}

}  // namespace

Plan plan(const Profile& profile, int64_t rows,
          const std::vector<PlanDevice>& devices, const PlanOptions& options) {
  return plan_replica(profile, rows, devices, options, /*replicas=*/1);
}

namespace detail {

Plan plan(const torch::nn::Sequential& model, const internal::Value& input,
          const std::vector<PlanDevice>& devices, const PlanOptions& options) {
  TORCH_CHECK_VALUE(!model.is_empty(), "plan: the model is null");
  const int64_t rows = internal::rows_of(input, options.unsplit());
  check(rows, devices, options);
  check_layers(model->size(), devices);
  const ThreadsScope threads(options.profile().device().is_cpu()
                                 ? internal::share_of_threads(places(devices))
                                 : at::get_num_threads());
  // Profile under the conditions of training: the other ranks are busy at the
  // same time.
  TimeOptions profiled = options.profile();
  if (profiled.concurrent_copies() == 0 && profiled.device().is_cpu()) {
    const auto workers = static_cast<int64_t>(workers_of(devices, options));
    profiled.concurrent_copies(std::min(cores(), workers) - 1);
  }
  if (splits_backward(options)) profiled.split_backward(true);
  std::vector<planner::Workload> workloads;
  for (const int64_t chunks : chunks_to_try(options, rows, devices.size())) {
    const auto first = first_microbatch(input, chunks, options.unsplit());
    Profile of_layers;
    try {
      of_layers = profile(model, first, profiled);
    } catch (const c10::Error&) {
      // So few rows may be too few for a layer, as one row for BatchNorm1d.
      if (workloads.empty() || !options.chunks().empty()) throw;
      break;
    }
    of_layers.rows = internal::rows_of(first, options.unsplit());
    workloads.push_back(workload_of(of_layers, rows, chunks));
  }
  PlanOptions with_overhead = options;
  const bool on_cpus = std::ranges::all_of(
      devices, [](const PlanDevice& each) { return each.device().is_cpu(); });
  if (!options.overhead() && on_cpus) with_overhead.overhead(kOverhead);
  return plan_search(std::move(workloads), devices, with_overhead);
}

}  // namespace detail

// ---- Replicas

namespace {

// The worst of the links or devices that have the same place in each replica.
class Worst {
 public:
  Worst(const std::vector<PlanDevice>& devices, const PlanOptions& options,
        int64_t replicas)
      : devices_(devices),
        options_(options),
        replicas_(static_cast<std::size_t>(replicas)),
        ranks_(devices.size() / replicas_) {}

  std::vector<PlanDevice> devices() const {
    std::vector<PlanDevice> result(
        devices_.begin(),
        devices_.begin() + static_cast<std::ptrdiff_t>(ranks_));
    for (std::size_t k = ranks_; k < devices_.size(); ++k) {
      PlanDevice& worst = result[k % ranks_];
      const PlanDevice& each = devices_[k];
      worst.speed(std::min(worst.speed(), each.speed()));
      worst.memory_bytes(std::min(worst.memory_bytes(), each.memory_bytes()));
      worst.host_bandwidth(
          std::min(worst.host_bandwidth(), each.host_bandwidth()));
    }
    return result;
  }

  // Returns the links within a replica; none if all links are equal.
  std::vector<PlanLink> links() const {
    if (options_.links().empty()) return {};
    std::vector<PlanLink> result;
    for (std::size_t a = 0; a < ranks_; ++a) {
      for (std::size_t b = 0; b < ranks_; ++b) {
        PlanLink worst;
        for (std::size_t d = 0; d < replicas_; ++d) {
          worst = worse(worst, link(d * ranks_ + a, d * ranks_ + b));
        }
        result.push_back(worst);
      }
    }
    return result;
  }

  // Returns how long the devices of each rank add up gradients.
  std::vector<PlanLink> gradient_sums() const {
    if (replicas_ == 1) return {};
    const auto d = static_cast<double>(replicas_);
    const double hops = 2 * (d - 1);
    std::vector<PlanLink> result;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      PlanLink worst;
      for (std::size_t k = 0; k < replicas_; ++k) {
        const std::size_t next = (k + 1) % replicas_;
        worst = worse(worst, link(k * ranks_ + rank, next * ranks_ + rank));
      }
      result.push_back({hops * worst.latency, worst.bandwidth * d / hops});
    }
    return result;
  }

 private:
  PlanLink link(std::size_t from, std::size_t to) const {
    if (options_.links().empty()) {
      return {options_.latency(), options_.bandwidth()};
    }
    return options_.links()[from * devices_.size() + to];
  }

  static PlanLink worse(const PlanLink& a, const PlanLink& b) {
    return {std::max(a.latency, b.latency), std::min(a.bandwidth, b.bandwidth)};
  }

  const std::vector<PlanDevice>& devices_;
  const PlanOptions& options_;
  const std::size_t replicas_, ranks_;
};

ReplicatedPlan plan_one(const Profile& profile, int64_t rows,
                        const std::vector<PlanDevice>& devices,
                        int64_t replicas, bool shard_optimizer,
                        const PlanOptions& given) {
  const auto count = std::ssize(devices);
  TORCH_CHECK_VALUE(replicas >= 1 && count % replicas == 0,
                    "plan_replicas: ", count,
                    " devices cannot be divided into ", replicas, " replicas");
  TORCH_CHECK_VALUE(replicas <= rows, "plan_replicas: a mini-batch of ", rows,
                    " rows is too small for ", replicas, " replicas");
  const Worst worst(devices, given, replicas);
  PlanOptions options = given;
  options.links(worst.links()).gradient_sums(worst.gradient_sums());
  constexpr double kOfGradients = 2;  // a parameter and its gradient
  if (shard_optimizer && options.param_scale() > kOfGradients) {
    options.param_scale(kOfGradients + (options.param_scale() - kOfGradients) /
                                           static_cast<double>(replicas));
  }
  return {replicas, plan_replica(profile, rows_per_microbatch(rows, replicas),
                                 worst.devices(), options, replicas)};
}

}  // namespace

std::vector<ReplicatedPlan> plan_replicas(
    const Profile& profile, int64_t rows,
    const std::vector<PlanDevice>& devices,
    const std::vector<int64_t>& replicas, bool shard_optimizer,
    const PlanOptions& options) {
  TORCH_CHECK_VALUE(!replicas.empty(),
                    "plan_replicas: there must be at least 1 number of "
                    "replicas");
  TORCH_CHECK_VALUE(options.gradient_sums().empty(),
                    "plan_replicas: sets gradient_sums itself, but there are ",
                    options.gradient_sums().size());
  // Before the worst of them are taken, which may leave out NaN.
  check(rows, devices, options);
  std::vector<ReplicatedPlan> plans;
  std::optional<InfeasibleError> error;
  for (const int64_t each : replicas) {
    try {
      plans.push_back(
          plan_one(profile, rows, devices, each, shard_optimizer, options));
    } catch (const InfeasibleError& infeasible) {
      if (!error) error = infeasible;
    }
  }
  if (plans.empty()) throw InfeasibleError(*error);
  std::ranges::stable_sort(plans, {}, [](const ReplicatedPlan& each) {
    return each.plan.step_seconds;
  });
  return plans;
}

}  // namespace gpipe::balancing
