#include "benchmarks/timeline.h"

#include <ATen/core/Tensor.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "benchmarks/harness/copy_streams.h"
#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/outcome_table.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/timing.h"
#include "benchmarks/relay.h"
#include "benchmarks/tables.h"
#include "gpipe/base/text.h"
#include "gpipe/gpipe.h"
#include "gpipe/meta.h"
#include "gpipe/schedule/microbatches.h"

namespace gpipe::benchmarks {
namespace {

// Shuffles the backwards of each rank. A fill-drain schedule has all of them at
// the end of the rank's actions.
void shuffle_backwards(Schedule& schedule, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto& actions : schedule.ranks) {
    const auto first = std::ranges::find_if(actions, [](const Action& action) {
      return action.kind == ActionKind::kBackward;
    });
    std::shuffle(first, actions.end(), random);
  }
}

}  // namespace

Schedule ablated_schedule(int partitions, int microbatches, int checkpointed,
                          const Mechanisms& mechanisms, uint64_t seed) {
  Schedule schedule = fill_drain(partitions, microbatches);
  if (!mechanisms.ordered_backward) shuffle_backwards(schedule, seed);
  return with_recompute(
      schedule, [=](int microbatch) { return microbatch < checkpointed; },
      mechanisms.early_recompute ? RecomputePlacement::kBeforeBackward
                                 : RecomputePlacement::kWithBackward);
}

namespace {

// Returns the schedule of a step of `row`.
Schedule schedule_of(const Experiment& row, const Mechanisms& mechanisms,
                     uint64_t seed) {
  const int64_t count = num_microbatches(row.batch_size, row.chunks);
  return ablated_schedule(
      static_cast<int>(row.partitions), static_cast<int>(count),
      static_cast<int>(checkpointed_microbatches(row.checkpoint, count)),
      mechanisms, seed);
}

}  // namespace

Costs with_copies_in_turn(Costs costs) {
  const std::size_t boundaries = costs.forward.size() - 1;
  for (std::size_t j = 0; j < boundaries; ++j) {
    double seconds = costs.latency;
    if (costs.bandwidth > 0) {
      seconds += costs.boundary_bytes.at(j) / costs.bandwidth;
    }
    for (const std::size_t end : {j, j + 1}) {
      costs.forward[end] += seconds;
      costs.backward[end] += seconds;
    }
  }
  costs.latency = 0;
  costs.bandwidth = 0;
  return costs;
}

Timeline simulate_ablated(const balancing::Profile& profile,
                          const Experiment& experiment, const Link& link,
                          double device_speed, const Mechanisms& mechanisms,
                          uint64_t seed) {
  Costs costs = costs_of(profile, experiment, link, device_speed);
  if (!mechanisms.copy_streams) costs = with_copies_in_turn(std::move(costs));
  return simulate(schedule_of(experiment, mechanisms, seed), costs);
}

namespace {

struct Case {
  std::string name;
  Mechanisms on;
  std::optional<double> torchgpipe_speed;  // samples/s
  std::optional<double> torchgpipe_gib;    // sum over all devices
};

const std::vector<Case>& cases() {
  // The booleans are in the order of Mechanisms: skips, copies, recompute,
  // order.
  static const auto* const cases = new std::vector<Case>{
      {"all on", {true, true, true, true}, 58.477, 23.5},
      {"no direct skips", {false, true, true, true}, 55.191, 30.0},
      {"no copy streams", {true, false, true, true}, {}, {}},
      {"no early recompute", {true, true, false, true}, {}, {}},
      {"no ordered backward", {true, true, true, false}, {}, {}},
      {"neither skips nor streams", {false, false, true, true}, 41.306, 19.1},
      {"nor order", {false, false, true, false}, 30.662, 52.2},
      {"all off", {false, false, false, false}, {}, {}}};
  return *cases;
}

std::optional<double> times(std::optional<double> value, double factor) {
  return value ? std::optional<double>(*value * factor) : std::nullopt;
}

std::vector<Experiment> experiments(int64_t batch_size, int64_t channels) {
  const double all_on = *cases().front().torchgpipe_speed;
  std::vector<Experiment> experiments;
  for (const Case& each : cases()) {
    Experiment& row = experiments.emplace_back();
    row.name = each.name;
    row.partitions = 4;
    row.batch_size = batch_size;
    row.chunks = 8;
    row.balance = {34, 76, 70, 61};
    row.published = {each.torchgpipe_speed,
                     times(each.torchgpipe_speed, 1 / all_on),
                     times(each.torchgpipe_gib, kGiB)};
    row.size = {5, channels};
  }
  return experiments;
}

Workload workload(int64_t pixels, int64_t batch_size, int64_t channels) {
  return with_rows(images_with_masks(pixels, Mask::kOnes),
                   experiments(batch_size, channels), {batch_size, 10, 1});
}

}  // namespace

Benchmark timeline_benchmark() {
  Benchmark benchmark;
  benchmark.program = {
      "unet_timeline",
      "samples per second of U-Net in four partitions, with direct skips, "
      "copy\n"
      "streams, early recomputes and ordered backwards switched off in turn, "
      "beside the\n"
      "published figures of torchgpipe. --mode=auto measures if there are "
      "four\n"
      "accelerators, and simulates otherwise.",
      {"--mode=simulate", "--mode=measure --epochs=16",
       "--mode=simulate --link_bandwidth=3e9 --timeline=/tmp/steps.svg"}};
  benchmark.title = "U-Net, what mechanisms are worth";
  benchmark.table_kind = TableKind::kTimeline;
  benchmark.size_column = kUnetSize;
  benchmark.published = {{"torchgpipe samples/s", Figure::kSpeed},
                         {"of its all on", Figure::kSpeedUp},
                         {"torchgpipe GiB", Figure::kTotalBytes}};
  benchmark.base = cases().front().name;
  Experiment& plain = benchmark.yardstick.emplace();
  plain.name = "the plain model";
  plain.batch_size = 40;
  plain.size = {5, 64};
  plain.published = {28.5};
  benchmark.model = unet_of;
  benchmark.loss = mask_loss;
  benchmark.paper = workload(192, 128, 64);
  benchmark.small = workload(64, 32, 8);
  benchmark.notes = {
      "torchgpipe's figures are of 4 Tesla P40. Its rows switch on the "
      "dependency between backwards, then copy streams, then portals; its "
      "recomputes are always early."};
  return benchmark;
}

Mechanisms mechanisms_of(const Experiment& row) {
  for (const Case& each : cases()) {
    if (each.name == row.name) return each.on;
  }
  internal::refuse("'", row.name, "' is not a row of unet_timeline");
}

void simulate_rows(const Benchmark& benchmark, const RunOptions& options,
                   std::vector<Outcome>* rows,
                   std::vector<std::string>* notes) {
  const Workload& workload = options.workload(benchmark);
  const Experiment& first = rows->front().experiment;
  Simulator simulator(benchmark, workload, options.simulate);
  const balancing::Profile& profile = simulator.profile_of(first);
  const RelayedProfile relayed = [&] {
    const MetaGuard meta;
    return relayed_profile(profile, benchmark.model(first),
                           workload.input(profile.rows), first.balance);
  }();

  const double speed = simulator.device_speed();
  for (const std::string& note : simulator.notes()) notes->push_back(note);
  notes->emplace_back(
      "Memory is that of plain SGD, without the workspaces of operators.");
  notes->push_back("Orders of backwards are drawn from the seed " +
                   std::to_string(options.settings.seed) + ".");
  for (Outcome& row : *rows) {
    const Mechanisms on = mechanisms_of(row.experiment);
    Experiment experiment = row.experiment;
    if (!on.direct_skips) experiment.balance = relayed.balance;
    row.timeline = simulate_ablated(on.direct_skips ? profile : relayed.profile,
                                    experiment, options.simulate.link, speed,
                                    on, options.settings.seed);
    row.samples = experiment.batch_size;
    row.durations = {{row.timeline->makespan, 0}};
  }
}

namespace {

bool has_copies(const std::vector<c10::Device>& devices) {
  return std::ranges::any_of(devices, [&](const c10::Device& device) {
    return device != devices.front();
  });
}

// The pipeline for the rows with direct skips, or for the rows without them.
class Trial {
 public:
  Trial(const Benchmark& benchmark, const RunOptions& options,
        const Experiment& row)
      : loss_(benchmark.loss),
        devices_(devices_for(row.partitions, options.settings.devices)) {
    torch::manual_seed(options.settings.seed);
    Relayed made{benchmark.model(row), row.balance};
    if (!mechanisms_of(row).direct_skips) {
      made = relay_skips(made.model, made.balance);
    }
    // The schedules contain the recomputes.
    pipeline_ = GPipe(
        made.model,
        GPipeOptions(made.balance)
            .devices(devices_)
            .checkpoint(Checkpoint::kNever)
            .threads_per_partition(threads_per_partition(row.partitions)));
    const Workload& workload = options.workload(benchmark);
    input_ = workload.input(row.batch_size).to(devices_.front());
    target_ = workload.target(row.batch_size).to(devices_.back());
  }

  // Runs a step and adds its duration and, if `timeline` is true, its timeline
  // to `row`.
  void step(const Schedule& schedule, bool timeline, Outcome* row) {
    for (at::Tensor& parameter : pipeline_->parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
    const Stopwatch watch(devices_);
    // Reads no memory: if ranks share a device, its bytes are not those of one
    // rank.
    StepResult result = pipeline_->train_step(
        input_, target_, loss_, schedule,
        TrainOptions().timeline(timeline).memory(MemoryReader()));
    row->durations.push_back(watch.elapsed());
    row->timeline = std::move(result.timeline);
  }

 private:
  std::function<at::Tensor(at::Tensor, at::Tensor)> loss_;
  std::vector<c10::Device> devices_;
  GPipe pipeline_{nullptr};
  at::Tensor input_, target_;
};

}  // namespace

void plan_devices(const std::vector<c10::Device>& devices,
                  std::vector<Outcome>* rows) {
  set_devices(devices, rows);
  for (Outcome& row : *rows) {
    if (row.left_out) continue;
    const int64_t partitions = row.experiment.partitions;
    const std::vector<c10::Device> own = devices_for(partitions, devices);
    row.threads = threads_text(partitions, own.front());
    if (!mechanisms_of(row.experiment).copy_streams && !has_copies(own)) {
      row.error = "left out: nothing is copied, since all partitions are on " +
                  own.front().str();
      row.left_out = true;
    }
  }
}

void measure_rows(const Benchmark& benchmark, const RunOptions& options,
                  bool timelines, std::vector<Outcome>* rows) {
  std::map<bool, Trial> trials;  // by Mechanisms::direct_skips
  const auto step = [&](Outcome* row) {
    const Experiment& experiment = row->experiment;
    const Mechanisms on = mechanisms_of(experiment);
    const auto trial =
        trials.try_emplace(on.direct_skips, benchmark, options, experiment);
    std::optional<WithoutCopyStreams> without;
    if (!on.copy_streams) without.emplace();
    trial.first->second.step(schedule_of(experiment, on, options.settings.seed),
                             timelines, row);
  };

  Progress progress(benchmark.program.name, options.epochs);
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    for (std::size_t k = 0; k < rows->size(); ++k) {
      Outcome& row = (*rows)[k];
      if (!row.error.empty()) continue;
      row.samples = row.experiment.batch_size;
      try {
        step(&row);
      } catch (const std::exception& error) {
        row.error = describe(error);
        row.durations.clear();
        row.timeline.reset();
        continue;
      }
      progress.update(
          epoch + 1,
          static_cast<double>(k + 1) / static_cast<double>(rows->size()),
          static_cast<double>(row.samples) / row.durations.back().wall_seconds);
      if (epoch < options.skip_epochs) row.durations.clear();
    }
  }
}

namespace {

std::string title_of(const Benchmark& benchmark, const Outcome& row) {
  const Experiment& experiment = row.experiment;
  const int64_t microbatches =
      num_microbatches(experiment.batch_size, experiment.chunks);
  const std::string where = row.devices.empty() ? "" : " on " + row.devices;
  return benchmark.title + ": (" + absl::StrJoin(experiment.size, ",") + "), " +
         to_string(row.mode) + where + ", batch " +
         std::to_string(experiment.batch_size) + " in " +
         std::to_string(microbatches) + " micro-batches, checkpoint " +
         to_string(experiment.checkpoint) + ", balance " +
         balance_text(experiment.balance);
}

Cell range_of(const std::vector<double>& speeds) {
  if (speeds.size() < 2) return {};
  const auto [least, most] = std::ranges::minmax_element(speeds);
  return absl::StrFormat("%.1f..%.1f", *least, *most);
}

// Returns the peak in GiB, or nothing for a measured timeline, which has no
// bytes.
Cell peak_of(const std::optional<Timeline>& timeline) {
  if (!timeline || timeline->peak_bytes.empty()) return {};
  const auto& peaks = timeline->peak_bytes;
  return {std::accumulate(peaks.begin(), peaks.end(), 0.0) / kGiB, 1};
}

Cell idle_of(const std::optional<Timeline>& timeline) {
  if (!timeline) return {};
  return {100 * timeline->bubble_fraction, 1};
}

Cell published_cell(Figure figure, std::optional<double> value) {
  if (value && is_bytes(figure)) return {*value / kGiB, 1};
  return {value, 3};
}

}  // namespace

Table timeline_table(const Benchmark& benchmark,
                     const std::vector<Outcome>& rows) {
  Table table;
  table.title = title_of(benchmark, rows.at(0));
  table.name_column = "mechanisms";
  table.columns = {"mode",     "samples/s", "range", "of " + benchmark.base,
                   "peak GiB", "idle %"};
  for (const auto& column : benchmark.published) {
    table.columns.push_back(column.name);
  }
  for (const Outcome& outcome : rows) {
    const auto ratio =
        figure_of(Figure::kSpeedUp, outcome, base_of(benchmark, outcome, rows));
    Row& row = table.rows.emplace_back();
    row.name = outcome.experiment.name;
    row.durations = outcome.durations;
    row.error = outcome.error;
    row.cells = {to_string(outcome.mode),   {median_speed(outcome), 2},
                 range_of(speeds(outcome)), {ratio, 3},
                 peak_of(outcome.timeline), idle_of(outcome.timeline)};
    const auto& published = outcome.experiment.published;
    for (std::size_t k = 0; k < benchmark.published.size(); ++k) {
      row.cells.push_back(
          published_cell(benchmark.published[k].figure,
                         k < published.size() ? published[k] : std::nullopt));
    }
  }
  return table;
}

}  // namespace gpipe::benchmarks
