#include "gpipe/simulation/sensitivity.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpipe/simulation/disturbances.h"
#include "gpipe/simulation/engine.h"
#include "gpipe/text/refuse.h"

namespace gpipe {
namespace {

// The mean and the largest of several slowdowns.
class Slowdowns {
 public:
  void add(double factor) {
    sum_ += factor;
    worst_ = std::max(worst_, factor);
    ++count_;
  }

  Slowdown result() const {
    return count_ == 0 ? Slowdown{} : Slowdown{sum_ / count_, worst_};
  }

 private:
  double sum_ = 0, worst_ = 0;
  int count_ = 0;
};

// Runs one schedule with several disturbances.
class Trials {
 public:
  Trials(const Schedule& schedule, const Costs& costs)
      : engine_(schedule, costs),
        ranks_(schedule.ranks.size()),
        undisturbed_(engine_.run(engine_.durations(), nullptr)) {
    if (undisturbed_ > 0) return;
    internal::refuse(
        "a step takes no time, so it cannot be slower: give the "
        "stages costs");
  }

  Slowdown straggler(double factor) const {
    Slowdowns slowdowns;
    for (std::size_t r = 0; r < ranks_; ++r) {
      Disturbances disturbances;
      disturbances.rank_factors.assign(ranks_, 1);
      disturbances.rank_factors[r] = factor;
      slowdowns.add(slowdown(disturbances));
    }
    return slowdowns.result();
  }

  Slowdown jitter(double jitter, int seeds) const {
    Slowdowns slowdowns;
    for (int seed = 0; seed < seeds; ++seed) {
      Disturbances disturbances;
      disturbances.jitter = jitter;
      disturbances.seed = static_cast<std::uint64_t>(seed);
      slowdowns.add(slowdown(disturbances));
    }
    return slowdowns.result();
  }

  Slowdown outage(double fraction) const {
    Slowdowns slowdowns;
    for (const internal::Link& link : engine_.links()) {
      Disturbances disturbances;
      disturbances.outages = {
          {link.from, link.to, undisturbed_ / 2, fraction * undisturbed_}};
      slowdowns.add(slowdown(disturbances));
    }
    return slowdowns.result();
  }

 private:
  double slowdown(const Disturbances& disturbances) const {
    check_disturbances(disturbances, ranks_);
    return engine_.run(engine_.durations(), nullptr, &disturbances) /
           undisturbed_;
  }

  const internal::Engine engine_;
  const std::size_t ranks_;
  const double undisturbed_;  // seconds
};

}  // namespace

Sensitivity sensitivity(const Schedule& schedule, const Costs& costs,
                        const SensitivityOptions& options) {
  if (options.seeds < 1) {
    internal::refuse("seeds is ", options.seeds, ", but must be at least 1");
  }
  const Trials trials(schedule, costs);
  Sensitivity result;
  for (const double factor : options.stragglers) {
    result.stragglers.push_back(trials.straggler(factor));
  }
  for (const double jitter : options.jitters) {
    result.jitters.push_back(trials.jitter(jitter, options.seeds));
  }
  for (const double fraction : options.outages) {
    result.outages.push_back(trials.outage(fraction));
  }
  return result;
}

}  // namespace gpipe
