#include "benchmarks/unet_timeline/simulate.h"

#include "balancing/profile.h"
#include "benchmarks/harness/costs/layer_profile.h"
#include "benchmarks/harness/costs/links.h"
#include "benchmarks/harness/costs/simulate.h"
#include "benchmarks/unet_timeline/ablation.h"
#include "benchmarks/unet_timeline/relay.h"
#include "benchmarks/unet_timeline/rows.h"
#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

// Returns the speed of the simulated devices, relative to the profiled one.
double device_speed(const balancing::Profile& profile,
                    const RunOptions& options, const Link& link,
                    std::vector<std::string>* notes) {
  const double chosen = chosen_speed(options.simulate, options.small, notes);
  if (chosen > 0) return chosen;
  const Experiment plain = timeline_yardstick();
  return speed_as_published(profile, plain, link, plain.published.at(0).value(),
                            "torchgpipe's", notes);
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
  notes->push_back(links_text(link) + ".");
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
