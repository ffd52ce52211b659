#include "benchmarks/harness/costs/simulate.h"

#include <absl/strings/str_format.h>

#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "balancing/plan.h"
#include "benchmarks/harness/costs/layer_profile.h"
#include "benchmarks/harness/costs/step_costs.h"
#include "benchmarks/harness/experiment/mode.h"

namespace gpipe::benchmarks {
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
// the base, otherwise the first with a published speed, otherwise nullptr.
const Experiment* yardstick(const Benchmark& benchmark,
                            const Workload& workload) {
  const Experiment* first = nullptr;
  for (const Experiment& each : workload.experiments) {
    if (!published_speed(benchmark, each)) continue;
    if (each.name == benchmark.base) return &each;
    if (!first) first = &each;
  }
  return first;
}

}  // namespace

double chosen_speed(const SimulateOptions& options, bool small,
                    std::vector<std::string>* notes) {
  if (options.device_speed > 0) {
    notes->push_back(absl::StrFormat(
        "Devices are assumed to be %g times as fast as the profiled "
        "one.",
        options.device_speed));
    return options.device_speed;
  }
  if (!small) return 0;
  notes->emplace_back(
      "Devices are assumed to be as fast as the profiled one: published speeds "
      "are of other sizes.");
  return 1;
}

double speed_as_published(const balancing::Profile& profile,
                          const Experiment& experiment, const Link& link,
                          double published, const std::string& whose,
                          std::vector<std::string>* notes) {
  const double speed =
      speed_for(profile, experiment, link,
                static_cast<double>(experiment.batch_size) / published);
  notes->push_back(absl::StrFormat(
      "Devices are assumed to be %.4g times as fast as the profiled "
      "one: then %s has %s %g samples/s.",
      speed, experiment.name.c_str(), whose.c_str(), published));
  return speed;
}

std::string links_text(const Link& link) {
  return absl::StrFormat("Links: %g us and ", 1e6 * link.latency) +
         (link.bandwidth > 0 ? absl::StrFormat("%g GB/s", 1e-9 * link.bandwidth)
                             : "no limit to their bandwidth");
}

Simulator::Simulator(const Benchmark& benchmark, const Workload& workload,
                     SimulateOptions options)
    : benchmark_(benchmark), workload_(workload), options_(options) {}

Outcome Simulator::simulate(const Experiment& experiment) {
  Outcome outcome;
  const double speed = device_speed();  // before with_balance(), which uses it
  outcome.mode = Mode::kSimulate;
  outcome.experiment = with_balance(experiment);
  outcome.timeline =
      simulate_step(profile_of(experiment), outcome.experiment, link(), speed);
  outcome.samples = experiment.batch_size;
  outcome.durations = {{outcome.timeline->makespan, 0}};
  return outcome;
}

std::vector<std::string> Simulator::notes() const {
  std::vector<std::string> notes = notes_;
  notes.push_back(links_text(link()) +
                  "; copies overlap with computation. Times are proportional "
                  "to rows.");
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
  const auto limit = options_.bandwidth > 0
                         ? options_.bandwidth
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
                 .latency(options_.latency)
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
  if (device_speed_ > 0) return device_speed_;
  device_speed_ =
      chosen_speed(options_, &workload_ != &benchmark_.paper, &notes_);
  if (device_speed_ > 0) return device_speed_;
  const Experiment* const known = yardstick(benchmark_, workload_);
  if (!known) {
    notes_.push_back(
        "Devices are assumed to be as fast as the profiled one, since no "
        "published figure says how fast they were.");
    return device_speed_ = 1;
  }
  return device_speed_ = speed_as_published(
             profile_of(*known), with_balance(*known), link(),
             *published_speed(benchmark_, *known), "its published", &notes_);
}

}  // namespace gpipe::benchmarks
