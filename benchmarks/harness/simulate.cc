#include "benchmarks/harness/simulate.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "balancing/plan.h"
#include "balancing/profile/threads_scope.h"
#include "balancing/stage_costs.h"
#include "benchmarks/harness/timing.h"
#include "gpipe/base/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/meta.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/summary.h"

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kFew = 16, kMany = 64 << 20;  // bytes
constexpr double kSeconds = 0.2;
constexpr std::size_t kTimes = 10;

double seconds_of_copy(c10::Device from, c10::Device to, int64_t bytes) {
  const auto options = at::TensorOptions().dtype(at::kByte);
  const at::Tensor source = at::zeros({bytes}, options.device(from));
  at::Tensor target = at::empty({bytes}, options.device(to));
  target.copy_(source);  // warms up
  std::vector<double> seconds;
  for (double sum = 0; sum < kSeconds || seconds.size() < kTimes;) {
    const Stopwatch watch({from, to});
    target.copy_(source);
    seconds.push_back(watch.elapsed().wall_seconds);
    sum += seconds.back();
  }
  return median(std::move(seconds));
}

}  // namespace

Link measure_link(c10::Device from, c10::Device to) {
  if (from == to || (from.is_cpu() && to.is_cpu())) return {};
  const double few = seconds_of_copy(from, to, kFew);
  const double many = seconds_of_copy(from, to, kMany);
  // The clock is too coarse to measure the bandwidth.
  if (many <= few) return {few, 0};
  return {few, static_cast<double>(kMany - kFew) / (many - few)};
}

namespace {

std::string text_of(const std::vector<TensorSummary>& tensors) {
  std::string text;
  for (const TensorSummary& tensor : tensors) text += " " + tensor.text();
  return text;
}

}  // namespace

std::vector<std::string> layer_kinds(const torch::nn::Sequential& model,
                                     const at::Tensor& input) {
  const Summary described = summary(model, input);
  std::vector<TensorSummary> incoming = {
      {true, input.sizes().vec(), input.scalar_type()}};
  std::vector<std::string> kinds;
  for (const auto& layer : *model) {
    const LayerSummary& each = described.layers[kinds.size()];
    std::ostringstream kind;
    if (kinds.empty()) kind << "first ";
    kind << *layer.ptr() << " of " << each.parameters << " parameters, "
         << each.bytes << " bytes";
    for (const std::string& name : each.stashes) kind << ", stashes " << name;
    for (const std::string& name : each.pops) kind << ", pops " << name;
    kind << ":" << text_of(incoming) << " to" << text_of(each.outputs);
    kinds.push_back(kind.str());
    incoming = each.outputs;
  }
  return kinds;
}

bool covers(const std::vector<std::string>& of_others,
            const std::vector<std::string>& kinds) {
  const std::set<std::string> known(of_others.begin(), of_others.end());
  for (const std::string& kind : kinds) {
    if (known.count(kind) == 0) return false;
  }
  return true;
}

using balancing::LayerTime;

std::vector<LayerTime> times_by_kind(const std::vector<std::string>& kinds,
                                     const std::vector<std::string>& timed,
                                     const std::vector<LayerTime>& times) {
  if (timed.size() != times.size()) {
    internal::refuse("there are ", times.size(), " times, but kinds of ",
                     timed.size(), " layers");
  }
  struct Times {
    std::vector<double> forward, backward, accumulate;
  };
  std::map<std::string, Times> by_kind;
  for (std::size_t k = 0; k < timed.size(); ++k) {
    Times& kind = by_kind[timed[k]];
    kind.forward.push_back(times[k].forward);
    kind.backward.push_back(times[k].backward);
    kind.accumulate.push_back(times[k].accumulate);
  }
  std::vector<LayerTime> result;
  for (const std::string& kind : kinds) {
    const auto found = by_kind.find(kind);
    if (found == by_kind.end()) {
      internal::refuse("no layer was timed that is a ", kind);
    }
    LayerTime& time = result.emplace_back();
    time.forward = median(found->second.forward);
    time.backward = median(found->second.backward);
    time.accumulate = median(found->second.accumulate);
  }
  return result;
}

namespace {

using Kinds = std::vector<std::string>;

// The sweeps over the layers that must fit into the time: one to warm up, one
// to measure, and one more.
constexpr double kSweeps = 3;

// Returns the kinds of the layers of the experiment's model. Allocates no
// memory.
Kinds kinds_of(const Benchmark& benchmark, const Workload& workload,
               const Experiment& experiment) {
  const MetaGuard meta;
  return layer_kinds(benchmark.model(experiment), workload.input(1));
}

// Returns the experiment with the smallest depth whose model has all `kinds`.
Experiment most_shallow(const Benchmark& benchmark, const Workload& workload,
                        const Experiment& experiment, const Kinds& kinds) {
  if (experiment.size.empty()) return experiment;
  Experiment shallow = experiment;
  for (int64_t depth = 1; depth < experiment.size[0]; ++depth) {
    shallow.size[0] = depth;
    try {
      if (covers(kinds_of(benchmark, workload, shallow), kinds)) {
        return shallow;
      }
    } catch (const c10::ValueError&) {
      // The model does not support this depth.
    }
  }
  return experiment;
}

LayerTime total(const std::vector<LayerTime>& times) {
  LayerTime sum;
  for (const LayerTime& time : times) {
    sum.forward += time.forward;
    sum.backward += time.backward;
    sum.accumulate += time.accumulate;
  }
  return sum;
}

std::string size_text(const Experiment& experiment) {
  return experiment.size.empty()
             ? "The model"
             : "(" + absl::StrJoin(experiment.size, ",") + ")";
}

std::string note_on(const Experiment& experiment, const Experiment& timed,
                    const Kinds& kinds, const balancing::Profile& profile) {
  const LayerTime sum = total(profile.times);
  const std::string text = absl::StrFormat(
      " on %s%s, %ld rows: %zu layers of %zu kinds take %.3g s forward "
      "and %.3g s backward.",
      profile.device.c_str(), profile.device == "cpu" ? " (one thread)" : "",
      profile.rows, kinds.size(),
      std::set<std::string>(kinds.begin(), kinds.end()).size(), sum.forward,
      sum.backward);
  return size_text(experiment) +
         (timed.size == experiment.size ? " was timed"
                                        : " was timed as " + size_text(timed)) +
         text;
}

}  // namespace

LayerProfile profile_layers(const Benchmark& benchmark,
                            const Workload& workload,
                            const Experiment& experiment, int64_t rows,
                            double seconds, std::optional<c10::Device> chosen) {
  const Kinds kinds = kinds_of(benchmark, workload, experiment);
  const Experiment shallow =
      most_shallow(benchmark, workload, experiment, kinds);
  const Kinds timed = kinds_of(benchmark, workload, shallow);
  balancing::Profile profile;
  const c10::Device device = chosen ? *chosen : all_devices().front();
  profile.device = device.str();
  {
    const balancing::ThreadsScope one_thread(
        device.is_cpu() ? 1 : at::get_num_threads());
    const auto model = benchmark.model(shallow);
    const auto time = [&](int64_t rows, double timeout) {
      const auto times = balancing::profile_times(
          model, workload.input(rows),
          balancing::TimeOptions().timeout(timeout).device(device));
      profile.rows = rows;
      profile.times = times_by_kind(kinds, timed, times);
      return total(times).total();  // seconds of one sweep
    };
    const double affordable = seconds / (kSweeps * time(1, 0));
    rows = std::min(rows, static_cast<int64_t>(affordable));
    if (rows > 1) time(rows, seconds / (2 * kSweeps));
  }
  const MetaGuard meta;
  const auto model = benchmark.model(experiment);
  for (const auto& child : model->named_children()) {
    profile.names.push_back(child.key());
  }
  profile.memory =
      balancing::profile_memory(model, workload.input(profile.rows));
  std::string note = note_on(experiment, shallow, kinds, profile);
  return {std::move(profile), std::move(note)};
}

Costs costs_of(const balancing::Profile& profile, const Experiment& experiment,
               const Link& link, double device_speed) {
  const bool plain = experiment.partitions == 0;
  Costs costs = balancing::stage_costs(
      profile, experiment.batch_size, plain ? 1 : experiment.chunks,
      plain ? std::vector<int64_t>{std::ssize(profile.times)}
            : experiment.balance,
      device_speed);
  costs.latency = link.latency;
  costs.bandwidth = link.bandwidth;
  return costs;
}

Timeline simulate_step(const balancing::Profile& profile,
                       const Experiment& experiment, const Link& link,
                       double device_speed) {
  const Costs costs = costs_of(profile, experiment, link, device_speed);
  const bool plain = experiment.partitions == 0;
  const int64_t count =
      plain ? 1 : num_microbatches(experiment.batch_size, experiment.chunks);
  const int64_t recomputed =
      plain ? 0 : checkpointed_microbatches(experiment.checkpoint, count);
  const Schedule schedule =
      with_recompute(fill_drain(static_cast<int>(costs.forward.size()),
                                static_cast<int>(count)),
                     [=](int microbatch) { return microbatch < recomputed; });
  return simulate(schedule, costs);
}

double speed_for(const balancing::Profile& profile,
                 const Experiment& experiment, const Link& link,
                 double seconds) {
  const auto makespan = [&](double speed) {
    return simulate_step(profile, experiment, link, speed).makespan;
  };
  const double with_copies_only = makespan(1e15);
  if (with_copies_only > seconds) {
    std::ostringstream text;
    text << experiment.name << " cannot take " << seconds
         << " s on any device: its copies take " << with_copies_only
         << " s; raise the bandwidth of the links";
    throw std::invalid_argument(text.str());
  }
  double low = 1, high = 1;
  while (makespan(low) <= seconds) low /= 2;
  while (makespan(high) > seconds) high *= 2;
  while (high / low - 1 > 1e-10) {
    const double middle = std::sqrt(low * high);
    (makespan(middle) > seconds ? low : high) = middle;
  }
  return high;
}

namespace {

// Returns the figure of the first published column with samples per second.
std::optional<double> published_speed(const Benchmark& benchmark,
                                      const Experiment& experiment) {
  for (std::size_t k = 0; k < benchmark.published.size(); ++k) {
    if (benchmark.published[k].figure != Figure::kSpeed) continue;
    if (k < experiment.published.size()) return experiment.published[k];
    break;
  }
  return std::nullopt;
}

// Returns the experiment whose published speed sets the speed of the devices:
// the yardstick of the benchmark, otherwise the base, otherwise the first with
// a published speed, otherwise nullptr.
const Experiment* yardstick(const Benchmark& benchmark,
                            const Workload& workload) {
  if (benchmark.yardstick) return &*benchmark.yardstick;
  const Experiment* first = nullptr;
  for (const Experiment& each : workload.experiments) {
    if (!published_speed(benchmark, each)) continue;
    if (each.name == benchmark.base) return &each;
    if (!first) first = &each;
  }
  return first;
}

std::string links_text(const Link& link) {
  return absl::StrFormat("Links: %g us and ", 1e6 * link.latency) +
         (link.bandwidth > 0 ? absl::StrFormat("%g GB/s", 1e-9 * link.bandwidth)
                             : "no limit to their bandwidth");
}

}  // namespace

Simulator::Simulator(const Benchmark& benchmark, const Workload& workload,
                     SimulateOptions options)
    : benchmark_(benchmark), workload_(workload), options_(options) {}

Outcome Simulator::simulate(const Experiment& experiment) {
  Outcome outcome;
  const double speed = device_speed();  // before with_balance(), which uses it
  outcome.mode = Mode::kSimulate;
  outcome.experiment = with_balance(experiment);
  outcome.timeline = simulate_step(profile_of(experiment), outcome.experiment,
                                   options_.link, speed);
  outcome.samples = experiment.batch_size;
  outcome.durations = {{outcome.timeline->makespan, 0}};
  return outcome;
}

std::vector<std::string> Simulator::notes() const {
  std::vector<std::string> notes = notes_;
  notes.push_back(links_text(options_.link) +
                  "; copies on streams of their own overlap with computation. "
                  "Times are proportional to rows.");
  return notes;
}

const balancing::Profile& Simulator::profile_of(const Experiment& experiment) {
  const auto found = profiles_.find(experiment.size);
  if (found != profiles_.end()) return found->second;

  LayerProfile made =
      profile_layers(benchmark_, workload_, experiment, options_.profile_rows,
                     options_.profile_seconds, options_.device);
  notes_.push_back(std::move(made.note));
  return profiles_.emplace(experiment.size, std::move(made.profile))
      .first->second;
}

std::vector<int64_t> Simulator::balance_of(const Experiment& experiment) {
  const auto limit = options_.link.bandwidth > 0
                         ? options_.link.bandwidth
                         : std::numeric_limits<double>::infinity();
  const auto partitions = static_cast<std::size_t>(experiment.partitions);
  return balancing::plan(
             profile_of(experiment), experiment.batch_size,
             std::vector<balancing::PlanDevice>(
                 partitions, balancing::PlanDevice().speed(
                                 device_speed_ > 0 ? device_speed_ : 1)),
             balancing::PlanOptions()
                 .schedules({"fill-drain"})
                 .stages_per_rank({1})
                 .chunks({experiment.chunks})
                 .checkpoints({experiment.checkpoint})
                 .latency(options_.link.latency)
                 .bandwidth(limit)
                 .workers(experiment.partitions))
      .balance;
}

Experiment Simulator::with_balance(Experiment experiment) {
  if (experiment.partitions > 0 && experiment.balance.empty()) {
    experiment.balance = balance_of(experiment);
  }
  return experiment;
}

double Simulator::device_speed() {
  if (device_speed_ == 0) device_speed_ = find_device_speed();
  return device_speed_;
}

double Simulator::find_device_speed() {
  const std::string assumed = "Devices are assumed to be ";
  if (options_.device_speed > 0) {
    notes_.push_back(assumed +
                     absl::StrFormat("%g times as fast as the profiled one.",
                                     options_.device_speed));
    return options_.device_speed;
  }
  if (&workload_ != &benchmark_.paper) {
    notes_.push_back(assumed +
                     "as fast as the profiled one: published speeds are of "
                     "other sizes.");
    return 1;
  }
  const Experiment* const known = yardstick(benchmark_, workload_);
  if (!known) {
    notes_.push_back(assumed +
                     "as fast as the profiled one, since no published figure "
                     "says how fast they were.");
    return 1;
  }
  const double published = *published_speed(benchmark_, *known);
  const double speed =
      speed_for(profile_of(*known), with_balance(*known), options_.link,
                static_cast<double>(known->batch_size) / published);
  notes_.push_back(
      assumed + absl::StrFormat("%.4g times as fast as the profiled one: then "
                                "%s has its published %g samples/s.",
                                speed, known->name, published));
  return speed;
}

}  // namespace gpipe::benchmarks
