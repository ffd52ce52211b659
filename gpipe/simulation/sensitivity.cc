#include "gpipe/simulation/sensitivity.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/simulation/disturbances.h"
#include "gpipe/simulation/engine.h"
#include "gpipe/text/refuse.h"

namespace gpipe {
namespace {

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
    return over(ranks_, [&](std::size_t rank, Disturbances& one) {
      one.rank_factors.assign(ranks_, 1);
      one.rank_factors[rank] = factor;
    });
  }

  Slowdown jitter(double jitter, int seeds) const {
    return over(static_cast<std::size_t>(seeds),
                [&](std::size_t seed, Disturbances& one) {
                  one.jitter = jitter;
                  one.seed = seed;
                });
  }

  Slowdown outage(double fraction) const {
    const auto& links = engine_.links();
    return over(links.size(), [&](std::size_t k, Disturbances& one) {
      one.outages = {{links[k].from, links[k].to, undisturbed_ / 2,
                      fraction * undisturbed_}};
    });
  }

 private:
  // Returns the slowdown over `count` disturbances, which `disturb` fills.
  template <typename Disturb>
  Slowdown over(std::size_t count, const Disturb& disturb) const {
    if (count == 0) return {};
    double sum = 0, worst = 0;
    for (std::size_t k = 0; k < count; ++k) {
      Disturbances one;
      disturb(k, one);
      check_disturbances(one, ranks_);
      const double factor =
          engine_.run(engine_.durations(), nullptr, &one) / undisturbed_;
      sum += factor;
      worst = std::max(worst, factor);
    }
    return {sum / static_cast<double>(count), worst};
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
