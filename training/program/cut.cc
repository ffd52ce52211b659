#include "training/program/cut.h"

#include <ATen/Parallel.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "balancing/plan.h"
#include "balancing/profile.h"
#include "balancing/profile/threads_scope.h"
#include "balancing/stage_costs.h"
#include "gpipe/base/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/simulation.h"

namespace gpipe::train_program {

// ---- The option --offload

namespace {

constexpr int kAutomaticDistance = 2;
constexpr double kUsablePart = 0.8;

// Returns the total memory of an accelerator; 0 if it is not known.
double memory_of(const c10::Device& device) {
  auto* const allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator) return 0;
  try {
    const auto index = device.has_index() ? device.index() : 0;
    return static_cast<double>(allocator->getMemoryInfo(index).second);
  } catch (const c10::Error&) {
    return 0;  // not all devices say it
  }
}

int distance_of(const std::string& offload) {
  int number = 0;
  TORCH_CHECK_VALUE(absl::SimpleAtoi(offload, &number) && number >= 0,
                    "--offload=", offload,
                    ": must be none, auto, or a number of actions >= 0");
  return number;
}

}  // namespace

RankDevice rank_device(const c10::Device& device) {
  RankDevice result;
  result.is_accelerator = !device.is_cpu() && !device.is_meta();
  if (result.is_accelerator) result.memory_bytes = memory_of(device);
  return result;
}

std::string to_text(const RankDevice& device) {
  return exact_text({device.is_accelerator ? 1.0 : 0.0, device.memory_bytes});
}

RankDevice rank_device_of(const std::string& text) {
  const std::vector<double> numbers = parse_exact(text);
  TORCH_CHECK_VALUE(numbers.size() == 2, "'", text,
                    "' does not describe a device");
  return {numbers[0] != 0, numbers[1]};
}

std::vector<double> predicted_bytes(const Schedule& schedule,
                                    Checkpoint checkpoint,
                                    const std::vector<int64_t>& balance,
                                    const balancing::MemoryProfile& memory,
                                    double param_scale) {
  balancing::Profile profile;
  profile.rows = 1;
  profile.times.assign(memory.layers.size(), {1, 2});
  profile.memory = memory;
  const int64_t chunks = num_microbatches(schedule);
  const Costs costs = balancing::stage_costs(profile, /*rows=*/chunks, chunks,
                                             balance, /*speed=*/1, param_scale);
  const int64_t recomputed = checkpointed_microbatches(checkpoint, chunks);
  return simulate(
             with_recompute(schedule, [&](int i) { return i < recomputed; }),
             costs)
      .peak_bytes;
}

std::vector<int64_t> ranks_to_offload(const std::vector<RankDevice>& devices,
                                      const std::vector<double>& predicted) {
  bool is_known = !predicted.empty();
  for (const RankDevice& device : devices) {
    if (!device.is_accelerator) return {};
    is_known = is_known && device.memory_bytes > 0;
  }
  std::vector<int64_t> ranks;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    if (is_known && predicted.at(r) <= kUsablePart * devices[r].memory_bytes) {
      continue;
    }
    ranks.push_back(static_cast<int64_t>(r));
  }
  return ranks;
}

Schedule with_offload_option(
    Schedule schedule, const std::string& offload,
    const std::function<std::vector<int64_t>()>& automatic) {
  if (offload == "none") return schedule;
  if (offload != "auto") {
    auto which = distant_cells(schedule, distance_of(offload));
    return with_offload(std::move(schedule), which);
  }
  const std::vector<int64_t> ranks = automatic();
  const std::vector<int> rank_of = rank_of_stage(schedule);
  const auto is_distant = distant_cells(schedule, kAutomaticDistance);
  return with_offload(std::move(schedule), [&](int stage, int microbatch) {
    const auto rank = rank_of[static_cast<std::size_t>(stage)];
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end() &&
           is_distant(stage, microbatch);
  });
}

// ---- Cuts

double param_scale_of(const Options& options) {
  double scale = 4;  // Adam and AdamW
  if (options.optimizer == "sgd") scale = options.momentum > 0 ? 3 : 2;
  if (options.optimizer == "adagrad") scale = 3;
  if (options.optimizer == "rmsprop") scale = options.momentum > 0 ? 4 : 3;
  if (!options.shard_optimizer) return scale;
  return 2 + (scale - 2) / static_cast<double>(options.data_parallel);
}

namespace {

std::vector<int64_t> balance_of(const Options& options,
                                const CutSources& sources, int64_t stages,
                                int64_t micro_rows) {
  const auto layers = static_cast<int64_t>(sources.model->size());
  TORCH_CHECK_VALUE(
      stages <= layers, stages, " stages are more than the model's ", layers,
      " layers; use fewer ", options.distributed ? "processes" : "--partitions",
      " or --stages_per_rank");
  if (auto listed = listed_balance(options, stages, layers, "stages")) {
    return *std::move(listed);
  }
  if (static_cast<int64_t>(sources.before.size()) == stages) {
    return sources.before;
  }
  if (stages == 1) return {layers};
  if (options.balance == "size") {
    return sources.input(sources.rows).with_input([&](const auto& input) {
      return balancing::balance_by_size(
          stages, sources.model, input,
          balancing::SizeOptions()
              .chunks(options.chunks)
              .param_scale(param_scale_of(options)));
    });
  }
  const Sample sample = sources.input(micro_rows);
  const c10::Device device = sample.input.device();
  const auto autocast = sources.precision.scope(device.type());
  const auto times = balancing::TimeOptions().timeout(1.0).device(device);
  const balancing::ThreadsScope threads(
      options.threads > 0 ? options.threads : at::get_num_threads());
  return sample.with_input([&](const auto& input) {
    if (!sources.make) {
      return balancing::balance_by_time(stages, sources.model, input, times);
    }
    return balancing::balance_by_time(stages, layers, sources.make, input,
                                      times);
  });
}

// Returns the ranks that offload if --offload is auto.
std::vector<int64_t> automatic_ranks(const Options& options,
                                     const CutSources& sources, const Cut& cut,
                                     int64_t micro_rows) {
  const auto plain = ranks_to_offload(sources.devices, {});
  if (plain.empty()) return {};
  std::vector<double> predicted;
  try {
    predicted = predicted_bytes(
        cut.schedule, parse_checkpoint(options.checkpoint), cut.balance,
        sources.input(micro_rows).with_input([&](const auto& input) {
          return balancing::profile_memory(sources.model, input);
        }),
        param_scale_of(options));
  } catch (const c10::Error&) {
    return plain;  // a layer cannot run without memory
  }
  return ranks_to_offload(sources.devices, predicted);
}

}  // namespace

std::optional<std::vector<int64_t>> listed_balance(const Options& options,
                                                   int64_t parts,
                                                   int64_t layers,
                                                   const std::string& kind) {
  if (options.balance == "time" || options.balance == "size") {
    return std::nullopt;
  }
  auto balance = with_value_error(
      [&] { return parse_numbers("balance", options.balance); });
  // A double, since the sum of any numbers may be too large for an int64_t.
  const double sum = std::accumulate(balance.begin(), balance.end(), 0.0);
  TORCH_CHECK_VALUE(static_cast<int64_t>(balance.size()) == parts &&
                        sum == static_cast<double>(layers),
                    "--balance=", options.balance, " is ", balance.size(), " ",
                    kind, " with ", sum, " layers; there are ", parts, " ",
                    kind, " and ", layers, " layers (or use time or size)");
  return balance;
}

namespace {

// Returns a flag as the int that a schedule takes.
int int_of(const char* flag, int64_t value) {
  constexpr int kMost = std::numeric_limits<int>::max();
  TORCH_CHECK_VALUE(value <= kMost, "--", flag, "=", value,
                    ": must be at most ", kMost);
  return static_cast<int>(value);
}

}  // namespace

Cut make_cut(const Options& options, const CutSources& sources) {
  check_at_least("chunks", options.chunks, 1);
  check_at_least("stages_per_rank", options.stages_per_rank, 1);
  TORCH_CHECK_VALUE(options.schedule != "forward-only",
                    "--schedule=", options.schedule, " does not train");
  check_at_least("accumulate", options.accumulate, 1);
  (void)int_of("accumulate", options.accumulate);  // checks
  (void)int_of("chunks", options.chunks);
  // A step splits its --accumulate mini-batches as one large mini-batch.
  int64_t rows = 0;
  TORCH_CHECK_VALUE(
      !__builtin_mul_overflow(sources.rows, options.accumulate, &rows),
      "--accumulate=", options.accumulate, " mini-batches of ", sources.rows,
      " rows are more rows than can be counted; use fewer");
  const int64_t micro_batches =
      num_microbatches(rows, options.chunks * options.accumulate);
  TORCH_CHECK_VALUE(micro_batches <= std::numeric_limits<int>::max(),
                    "--accumulate=", options.accumulate,
                    " and --chunks=", options.chunks, " are ", micro_batches,
                    " micro-batches per step; must be at most ",
                    std::numeric_limits<int>::max());
  const auto fixed = fixed_stages_per_rank(options.schedule);
  Cut cut;
  cut.chunks = options.chunks;
  cut.checkpoint = parse_checkpoint(options.checkpoint);
  cut.stages_per_rank =
      fixed.value_or(int_of("stages_per_rank", options.stages_per_rank));
  cut.schedule = named_schedule(
      options.schedule, int_of("partitions", sources.ranks),
      static_cast<int>(micro_batches), static_cast<int>(cut.stages_per_rank));
  const std::vector<int> ranks = rank_of_stage(cut.schedule);
  const auto stages = static_cast<int64_t>(ranks.size());
  if (stages > sources.ranks && ranks.back() == 0) {
    cut.placement = Placement::kV;
  }
  const int64_t micro_rows = rows_per_microbatch(sources.rows, options.chunks);
  const std::string balance = sources.of_first([&] {
    return absl::StrJoin(balance_of(options, sources, stages, micro_rows), ",");
  });
  cut.balance = parse_numbers("balance", balance);
  cut.schedule = with_offload_option(cut.schedule, options.offload, [&] {
    const std::string found = sources.of_first([&] {
      return absl::StrJoin(automatic_ranks(options, sources, cut, micro_rows),
                           ",");
    });
    return found.empty() ? std::vector<int64_t>()
                         : parse_numbers("offload", found);
  });
  return cut;
}

// ---- The cut that --plan asks for

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
