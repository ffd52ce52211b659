#include "balancing/plan.h"

#include <ATen/Parallel.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <set>
#include <thread>
#include <utility>

#include "balancing/plan_search.h"
#include "balancing/planner/bound.h"
#include "balancing/planner/candidate.h"
#include "balancing/threads_scope.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/device/threads.h"
#include "gpipe/schedule.h"

namespace gpipe::balancing {
namespace {

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

std::vector<c10::Device> places(const std::vector<PlanDevice>& devices) {
  std::vector<c10::Device> result;
  for (const PlanDevice& device : devices) result.push_back(device.device());
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

}  // namespace

double usable_memory(torch::Device device, double bytes) {
  constexpr double kWorkspaces = 2.0 * 32 * 1024 * 1024;
  return device.is_cuda() ? std::max(bytes - kWorkspaces, 0.0) : bytes;
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

Plan plan(const Profile& profile, int64_t rows,
          const std::vector<PlanDevice>& devices, const PlanOptions& options) {
  check(rows, devices, options);
  check_layers(profile.times.size(), devices);
  TORCH_CHECK_VALUE(profile.rows >= 1, "plan: the profile has ", profile.rows,
                    " rows, but must have at least 1");
  std::vector<detail::PlanSample> samples;
  for (const int64_t chunks : chunks_to_try(options, rows, devices.size())) {
    samples.push_back(detail::sample_of(profile, rows, chunks));
  }
  return detail::plan_search(samples, devices, options);
}

namespace detail {

int64_t workers_of(const std::vector<PlanDevice>& devices,
                   const PlanOptions& options) {
  const auto all = std::ssize(devices);
  if (options.workers() > 0) return std::min(all, options.workers());
  if (!devices[0].device().is_cpu()) return all;
  const auto cores =
      static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  return std::clamp<int64_t>(
      cores / internal::share_of_threads(places(devices)), 1, all);
}

Plan plan(const torch::nn::Sequential& model, const internal::Value& input,
          const std::vector<PlanDevice>& devices, const PlanOptions& options) {
  TORCH_CHECK_VALUE(!model.is_empty(), "plan: the model is null");
  const int64_t rows = internal::rows_of(input);
  check(rows, devices, options);
  check_layers(model->size(), devices);
  const ThreadsScope threads(options.profile().device().is_cpu()
                                 ? internal::share_of_threads(places(devices))
                                 : at::get_num_threads());
  // Profile under the conditions of training: the other ranks are busy at the
  // same time.
  TimeOptions profiled = options.profile();
  if (profiled.concurrent_copies() == 0 && profiled.device().is_cpu()) {
    const auto cores =
        static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
    profiled.concurrent_copies(std::min(cores, workers_of(devices, options)) -
                               1);
  }
  if (splits_backward(options)) profiled.split_backward(true);
  std::deque<Profile> profiles;  // keeps the addresses of its elements
  std::vector<PlanSample> samples;
  for (const int64_t chunks : chunks_to_try(options, rows, devices.size())) {
    profiles.push_back(
        profile(model, first_microbatch(input, chunks), profiled));
    samples.push_back(sample_of(profiles.back(), rows, chunks));
  }
  PlanOptions with_overhead = options;
  const bool on_cpus = std::ranges::all_of(
      devices, [](const PlanDevice& each) { return each.device().is_cpu(); });
  if (!options.overhead() && on_cpus) with_overhead.overhead(kOverhead);
  return plan_search(samples, devices, with_overhead);
}

}  // namespace detail
}  // namespace gpipe::balancing
