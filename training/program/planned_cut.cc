#include "training/program/planned_cut.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "balancing/plan.h"
#include "gpipe/base/devices.h"
#include "gpipe/schedule.h"

namespace gpipe::train_program {
namespace {

std::vector<balancing::PlanDevice> planned_devices(const Options& options,
                                                   int64_t ranks) {
  const auto given = parse_devices(options.devices);
  const c10::Device first = first_device(given);
  std::vector<balancing::PlanDevice> devices;
  for (int64_t k = 0; k < ranks; ++k) {
    c10::Device device = first;
    if (!given.empty()) {
      device = given[static_cast<std::size_t>(k) % given.size()];
    } else if (!first.is_cpu()) {
      device = {first.type(), static_cast<c10::DeviceIndex>(k)};
    }
    balancing::PlanDevice planned(device);
    if (options.plan_memory_gib > 0) {
      constexpr double kGib = 1024.0 * 1024 * 1024;
      planned.memory_bytes(
          balancing::usable_memory(device, kGib * options.plan_memory_gib));
    }
    devices.push_back(planned);
  }
  return devices;
}

balancing::Plan plan_now(const Options& options, const CutSources& sources) {
  TORCH_CHECK_VALUE(!sources.make,
                    "--plan=auto times the whole model, but with --distributed "
                    "a process reads only its part of a .pt2 file: plan in one "
                    "process, or give --plan a file of //tools:plan");
  const Sample sample = sources.input(sources.rows);
  const c10::Device device = sample.input.device();
  const auto autocast = sources.precision.scope(device.type());
  const auto plan_options =
      balancing::PlanOptions()
          .param_scale(param_scale_of(options))
          .offload(options.offload != "none")
          .profile(balancing::TimeOptions().device(device));
  return sample.with_input([&](const auto& input) {
    return balancing::plan(sources.model, input,
                           planned_devices(options, sources.ranks),
                           plan_options);
  });
}

void check(const balancing::Plan& plan, const Options& options,
           const CutSources& sources) {
  const auto layers = static_cast<int64_t>(sources.model->size());
  const auto ranks = static_cast<int64_t>(plan.partitions.size());
  const int64_t planned =
      std::accumulate(plan.balance.begin(), plan.balance.end(), int64_t{0});
  TORCH_CHECK_VALUE(ranks == sources.ranks && planned == layers,
                    "--plan=", options.plan, ": the plan is for ", planned,
                    " layers on ", ranks, " devices, but there are ", layers,
                    " layers on ", sources.ranks);
  TORCH_CHECK_VALUE(plan.chunks <= sources.rows, "--plan=", options.plan,
                    ": the plan has ", plan.chunks,
                    " micro-batches, but the mini-batch has only ",
                    sources.rows, " rows");
}

}  // namespace

double param_scale_of(const Options& options) {
  double scale = 4;  // Adam and AdamW
  if (options.optimizer == "sgd") scale = options.momentum > 0 ? 3 : 2;
  if (options.optimizer == "adagrad") scale = 3;
  if (options.optimizer == "rmsprop") scale = options.momentum > 0 ? 4 : 3;
  if (!options.shard_optimizer) return scale;
  return 2 + (scale - 2) / static_cast<double>(options.data_parallel);
}

Cut make_planned_cut(const Options& options, const CutSources& sources) {
  TORCH_CHECK_VALUE(options.accumulate == 1, "--plan=", options.plan,
                    ": needs --accumulate=1, but that is ", options.accumulate);
  Cut cut;
  const std::string json = sources.of_first([&] {
    const balancing::Plan plan = options.plan == "auto"
                                     ? plan_now(options, sources)
                                     : balancing::read_plan(options.plan);
    std::ostringstream text;
    text << plan;
    cut.plan = std::move(text).str();
    return balancing::to_json(plan);
  });
  const balancing::Plan plan = balancing::plan_from_json(json, options.plan);
  check(plan, options, sources);
  cut.schedule = plan.schedule();
  cut.balance = plan.balance;
  cut.stages_per_rank = plan.stages_per_rank;
  cut.placement = plan.placement;
  cut.chunks = plan.chunks;
  cut.checkpoint = plan.checkpoint;
  cut.predicted_seconds = plan.step_seconds;
  for (const balancing::PlannedPartition& part : plan.partitions) {
    cut.predicted_bytes.push_back(part.memory_bytes);
  }
  return cut;
}

}  // namespace gpipe::train_program
