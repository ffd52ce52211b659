#include "benchmarks/harness/step_costs.h"

#include <cmath>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/text/refuse.h"

namespace gpipe::benchmarks {
namespace {

void check(const balancing::Profile& profile,
           const std::vector<int64_t>& balance, double rows,
           double device_speed) {
  const auto layers = static_cast<int64_t>(profile.times.size());
  const auto sum = std::accumulate(balance.begin(), balance.end(), int64_t{0});
  if (sum != layers) {
    internal::refuse("the balance is one of ", sum,
                     " layers, but the profile is of ", layers);
  }
  if (profile.rows < 1 || !(rows > 0) || !(device_speed > 0)) {
    internal::refuse(
        "a profile of ", profile.rows, " rows cannot be scaled to ",
        std::to_string(rows), " rows on a device of speed ",
        std::to_string(device_speed), ": all three must be above 0");
  }
}

}  // namespace

Microbatches microbatches_of(int64_t batch_size, int64_t chunks) {
  const int64_t each = (batch_size + chunks - 1) / chunks;
  const int64_t count = (batch_size + each - 1) / each;
  return {count, static_cast<double>(batch_size) / static_cast<double>(count)};
}

Costs costs_of(const balancing::Profile& profile,
               const std::vector<int64_t>& balance, double rows,
               const Link& link, double device_speed) {
  check(profile, balance, rows, device_speed);
  const double scale = rows / static_cast<double>(profile.rows);
  Costs costs;
  int64_t first = 0;
  for (const int64_t layers : balance) {
    const int64_t last = first + layers;
    double forward = 0, backward = 0;
    for (int64_t k = first; k < last; ++k) {
      forward += profile.times[k].forward;
      backward += profile.times[k].backward;
    }
    costs.forward.push_back(forward * scale / device_speed);
    costs.backward.push_back(backward * scale / device_speed);
    if (first > 0) {
      costs.boundary_bytes.push_back(
          scale *
          static_cast<double>(profile.memory.incoming_bytes(first, last)));
    }
    first = last;
  }
  costs.recompute = costs.forward;
  costs.latency = link.latency;
  costs.bandwidth = link.bandwidth;
  return costs;
}

Timeline simulate_step(const balancing::Profile& profile,
                       const Experiment& experiment, const Link& link,
                       double device_speed) {
  const bool plain = experiment.partitions == 0;
  const auto balance =
      plain ? std::vector<int64_t>{static_cast<int64_t>(profile.times.size())}
            : experiment.balance;
  const auto [count, rows] =
      microbatches_of(experiment.batch_size, plain ? 1 : experiment.chunks);
  const int64_t recomputed =
      plain ? 0 : checkpointed_microbatches(experiment.checkpoint, count);
  const Schedule schedule = with_recompute(
      fill_drain(static_cast<int>(balance.size()), static_cast<int>(count)),
      [=](int microbatch) { return microbatch < recomputed; });
  return simulate(schedule,
                  costs_of(profile, balance, rows, link, device_speed));
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

}  // namespace gpipe::benchmarks
