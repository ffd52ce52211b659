#include "benchmarks/timeline_simulate.h"

#include <cstdio>

#include "balancing/profile.h"
#include "benchmarks/harness/ablation.h"
#include "benchmarks/harness/layer_profile.h"
#include "benchmarks/harness/links.h"
#include "benchmarks/harness/step_costs.h"
#include "benchmarks/relayed_profile.h"
#include "benchmarks/timeline_rows.h"
#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

template <typename... Numbers>
std::string format(const char* pattern, Numbers... numbers) {
  char text[200];
  std::snprintf(text, sizeof(text), pattern, numbers...);
  return text;
}

// Returns the speed of the simulated devices, relative to the profiled one.
double device_speed(const balancing::Profile& profile,
                    const RunOptions& options, const Link& link,
                    std::vector<std::string>* notes) {
  if (options.simulate.device_speed > 0) {
    notes->push_back(
        format("Devices are assumed to be %g times as fast as the profiled "
               "one.",
               options.simulate.device_speed));
    return options.simulate.device_speed;
  }
  if (options.small) {
    notes->emplace_back(
        "Devices are assumed to be as fast as the profiled one: published "
        "speeds are of other sizes.");
    return 1;
  }
  const Experiment plain = timeline_yardstick();
  const double published = plain.published.at(0).value();
  const double speed = speed_for(
      profile, plain, link, static_cast<double>(plain.batch_size) / published);
  notes->push_back(
      format("Devices are assumed to be %.4g times as fast as the profiled "
             "one: then %s has torchgpipe's %g samples/s.",
             speed, plain.name.c_str(), published));
  return speed;
}

std::string links_note(const Link& link) {
  return format("Links: %g us and ", 1e6 * link.latency) +
         (link.bandwidth > 0 ? format("%g GB/s.", 1e-9 * link.bandwidth)
                             : "no limit to their bandwidth.");
}

}  // namespace

void simulate_rows(const Benchmark& benchmark, const RunOptions& options,
                   std::vector<Outcome>* rows,
                   std::vector<std::string>* notes) {
  const Workload& workload = options.workload(benchmark);
  const Experiment& first = rows->front().experiment;
  const auto& how = options.simulate;
  const auto [profile, note] =
      profile_layers(benchmark, workload, first, how.profile_rows,
                     how.profile_seconds, how.device);
  notes->push_back(note);
  const RelayedProfile relayed = [&, &direct = profile] {
    const MetaGuard meta;
    return relayed_profile(direct, benchmark.model(first),
                           workload.input(direct.rows), first.balance);
  }();

  const Link link{how.latency, how.bandwidth};
  const double speed = device_speed(profile, options, link, notes);
  notes->push_back(links_note(link));
  notes->emplace_back(
      "Memory is that of plain SGD, without the workspaces of operators.");
  notes->push_back("Orders of backwards are drawn from the seed " +
                   std::to_string(options.settings.seed) + ".");
  for (Outcome& row : *rows) {
    const Mechanisms on = mechanisms_of(row.experiment);
    Experiment experiment = row.experiment;
    if (!on.direct_skips) experiment.balance = relayed.balance;
    row.timeline =
        simulate_ablated(on.direct_skips ? profile : relayed.profile,
                         experiment, link, speed, on, options.settings.seed);
    row.samples = experiment.batch_size;
    row.durations = {{row.timeline->makespan, 0}};
  }
}

}  // namespace gpipe::benchmarks
